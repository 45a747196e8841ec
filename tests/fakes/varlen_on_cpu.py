"""The backends over torch's varlen_attn on the CPU: its own Python code, on the kernel of `fake_flash`."""

from typing import Any

import fake_flash  # noqa: F401 - it registers the kernel
from msgspec.structs import replace
from wrapper_backends import OnCpu

from attnfuzz.kernels.gpu.direct import varlen
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.opening import opened
from attnfuzz.reference.device import Device


class _OnCpu(OnCpu):
    def open(self, case: Any, bench: Any) -> Any:
        """A session, whose exceptions are refusals at edges that are not promised."""
        return opened(self.session, case, bench, self.capability)


def _on_cpu(backend: GpuBackend) -> _OnCpu:
    fields = {name: getattr(backend, name) for name in backend.__dataclass_fields__}
    return _OnCpu(**{**fields, "capability": replace(backend.capability, device=Device.CPU)})


VARLEN_ATTN, VARLEN_ATTN_LSE, VARLEN_ATTN_OUT = map(
    _on_cpu, (varlen.VARLEN_ATTN, varlen.VARLEN_ATTN_LSE, varlen.VARLEN_ATTN_OUT)
)
