"""Stands for writers of the installed FlashInfer: functions on the CPU replace its own, on drawn cases."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from small_cases import drawn_for, lighter, passed

from attnfuzz.kernels.cache_writes.writer_backend import WriterBackend
from attnfuzz.kernels.cache_writes.writer_session import Writer, WriterSession
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.reference.device import Device


class _OnCpu(WriterBackend):
    original: Writer
    session: type[WriterSession]

    @property
    def name(self) -> str:
        return self.original.op.name

    @property
    def writer(self) -> Writer:
        op = self.original.op
        return replace(self.original, op=Op(op.name, self.function, op.writes, op.module))

    def kind(self) -> type[WriterSession]:
        return self.session


def passes_drawn_cases(backend: GpuBackend, on_cpu: Mapping[str, Callable[..., None]], count: int) -> None:
    """Check that drawn cases of `backend` pass with functions of FlashInfer's names in place of its own."""
    opened: Any = backend.session
    (writer,) = opened.args
    capability = msgspec.structs.replace(backend.capability, device=Device.CPU)
    here = type("Here", (_OnCpu,), {"original": writer, "session": opened.func})(
        on_cpu[writer.op.name], capability=capability
    )
    for case in lighter(drawn_for(capability, count, seed=5)):
        passed(case, here)
