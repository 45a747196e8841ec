"""Stands for torch's varlen_attn on a GPU: its own Python code over `fake_flash`, on the CPU."""

from typing import Any

import fake_flash  # noqa: F401 - it registers the kernel
from wrapper_backends import OnCpu, on_cpu_as

from attnfuzz.kernels.arguments.edges import opened
from attnfuzz.kernels.gpu.direct import varlen


class _OnCpu(OnCpu):
    def open(self, case: Any, bench: Any) -> Any:
        """A session, whose exceptions are refusals at edges that are not promised."""
        return opened(self.session, case, bench, self.capability)


VARLEN_ATTN, VARLEN_ATTN_LSE, VARLEN_ATTN_OUT = (
    on_cpu_as(each, each.session, _OnCpu)
    for each in (varlen.VARLEN_ATTN, varlen.VARLEN_ATTN_LSE, varlen.VARLEN_ATTN_OUT)
)
