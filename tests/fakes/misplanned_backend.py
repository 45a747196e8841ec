"""Stands for a planner on a GPU with a mistake: `misplanned_backend.py:pod` is pod planned for another scale.

Where a plan has no scale, its page ids are in another order. A name has "_" for what a Python name can't have.
"""

import re
from dataclasses import replace
from typing import Any

import torch

from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.interface.backend import Bench, LauncherAround, Op


class _Misplanning(LauncherAround):
    """Launches as another launcher does, but for plans."""

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        if op.plans and not op.helps:
            if "sm_scale" in arguments:
                arguments["sm_scale"] *= 3
            for name, value in arguments.items():
                if "indices" in name and "sm_scale" not in arguments and isinstance(value, torch.Tensor):
                    value.copy_(value.flip(0))
        elif op.name.endswith("forward") and "sm_scale" in arguments:
            arguments["sm_scale"] *= 3
        return self._inner.launch(op, **arguments)


def attribute_of(backend: str) -> str:
    """What such a backend is called in this file."""
    return re.sub(r"[^A-Za-z0-9]", "_", backend)


def __getattr__(attribute: str) -> GpuBackend:
    for base in GPU_BACKENDS:
        if attribute == attribute_of(base.name):
            return _misplanned(base)
    raise AttributeError(attribute)


def _misplanned(base: GpuBackend) -> GpuBackend:
    def open_session(case: Any, bench: Bench) -> Any:
        return base.session(case, replace(bench, launcher=_Misplanning(bench.launcher)))

    return replace(base, session=open_session)
