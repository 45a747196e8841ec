"""How a defect gets into the C++ kernels: kernels/native/defects.h has it by the same name."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from msgspec import structs

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.native.defective import defective
from attnfuzz.kernels.trtllm.backends import MHA, TrtllmBackend
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.mistake import Mistake
from attnfuzz.reference.noise import NoiseModel

Plant = Callable[[TrtllmBackend], TrtllmBackend]


def native_defect(
    name: str,
    layer: Layer,
    bug_class: BugClass,
    title: str,
    source: str,
    *,
    backend: TrtllmBackend = MHA,
    coarse: bool = False,
    explained_by: tuple[Mistake, ...] = (),
) -> Defect:
    """A defect of the kernels that `backend` runs on; with `coarse`, of kernels that compute as tensor cores do."""
    return Defect(
        name=name,
        layer=layer,
        bug_class=bug_class,
        title=title,
        source=source,
        backend=backend.name,
        plant=_in_coarse_kernels(name) if coarse else _in_kernels(name),
        explained_by=explained_by,
    )


def _in_kernels(*names: str) -> Plant:
    def plant(correct: TrtllmBackend) -> TrtllmBackend:
        return replace(correct, table=defective(*names))

    return plant


def _in_coarse_kernels(name: str) -> Plant:
    def plant(correct: TrtllmBackend) -> TrtllmBackend:
        return coarse_kernels(correct, name)

    return plant


def coarse_kernels(correct: TrtllmBackend, *names: str) -> "CoarseBackend":
    """A backend on kernels that compute as tensor cores do, with the native defects of these names."""
    half = tuple(dtype for dtype in correct.capability.dtypes if dtype is not DType.FLOAT32)
    parts = {field.name: getattr(correct, field.name) for field in fields(correct)}
    parts["capability"] = structs.replace(correct.capability, dtypes=half)
    parts["table"] = defective("probabilities_in_bf16", *names)
    return CoarseBackend(**parts)


@dataclass(frozen=True)
class CoarseBackend(TrtllmBackend):
    """Kernels that round the softmax weights to bf16, as tensor cores do, and say so; they take no fp32.

    What is small beside that rounding is found by the statistics of many elements, if at all.
    """

    def noise(self, dtype: DType) -> NoiseModel:
        """That of rounded weights."""
        del dtype
        return NoiseModel.rounded_probabilities(torch.bfloat16)
