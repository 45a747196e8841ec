"""A release's own CPUModelRunner, with a number of threads that follows from the case.

A file and line below vllm/ is that of vLLM 0.32.0 unless another version is named.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

import torch

from attnfuzz.kernels.libraries.vllm_cpu import on_threads
from attnfuzz.kernels.vllm.cpu.project import CPU_RUNNER
from attnfuzz.kernels.vllm.runner import ModelRunner
from attnfuzz.reference.case import Case

_THREADS: Final = (1, 2, 4)
"""The numbers of threads on which the kernels run a batch."""


def threads_of(case: Case) -> int:
    """Return the number of threads of the case's server."""
    return _THREADS[case.seed % len(_THREADS)]


class CpuRunner(ModelRunner):
    """The release's model runner for CPUs."""

    runner = CPU_RUNNER, "CPUModelRunner"

    @contextmanager
    def _machine(self) -> Iterator[None]:
        with (
            super()._machine(),
            on_threads(threads_of(self._server.case)),
            # Disables the kernels for AMX, which round more and have not been run here.
            mock.patch.object(torch.cpu, "_is_amx_tile_supported", return_value=False),
            # The runner replaces them by functions that do nothing (v1/worker/cpu_model_runner.py:169).
            mock.patch.multiple(torch.accelerator, synchronize=mock.DEFAULT, empty_cache=mock.DEFAULT),
        ):
            yield
