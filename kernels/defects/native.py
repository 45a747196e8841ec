"""Backends on native kernels with planted mistakes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from msgspec import structs

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.native.planted import Planted
from attnfuzz.kernels.trtllm.backends import TrtllmBackend
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel


def defective(*defects: str) -> OpsTable:
    """Return the native kernels, with the named defects planted while one of them runs."""
    own = {field: op for field, op in vars(NATIVE).items() if isinstance(op, Op)}
    ops: dict[str, Any] = {field: replace(op, function=Planted(op.function, *defects)) for field, op in own.items()}
    return replace(NATIVE, **ops, prepare=prepare)


def prepare(progress: Callable[[str], None]) -> None:
    """Build both libraries; the correct one has the fault recorder and the workspace sizes."""
    build.load(progress)
    build.load_with_defects(progress)


def coarse_kernels(correct: TrtllmBackend, *defects: str) -> "CoarseBackend":
    """Return a backend on kernels that compute like tensor cores, with the named defects."""
    half = tuple(dtype for dtype in correct.capability.dtypes if dtype is not DType.FLOAT32)
    changed = {
        "capability": structs.replace(correct.capability, dtypes=half),
        "table": defective("probabilities_in_bf16", *defects),
    }
    return CoarseBackend(**vars(correct) | changed)


@dataclass(frozen=True)
class CoarseBackend(TrtllmBackend):
    """Kernels that round the softmax weights to bf16 like tensor cores, declare it, and don't support fp32.

    Errors that are small compared with that rounding are found by the statistics of many elements, if at all.
    """

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the model of rounded weights."""
        return NoiseModel.rounded_probabilities(torch.bfloat16)
