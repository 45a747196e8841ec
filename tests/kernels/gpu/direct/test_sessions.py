"""The direct backends' sessions, judged with stand-ins that answer what their calls' own metadata says."""

from pathlib import Path

import pytest
from repetition import examples
from small_cases import drawn, run

from attnfuzz.kernels.gpu.gpu_backend import GpuBackend

pytest.importorskip("flashinfer", reason="calls are bound to the installed signatures")
import direct_on_cpu

BACKENDS = [name for name in dir(direct_on_cpu) if isinstance(getattr(direct_on_cpu, name), GpuBackend)]


@pytest.mark.slow
@examples(10, 30)
@pytest.mark.parametrize("backend", BACKENDS)
def test_drawn_cases_pass(backend: str, count: int) -> None:
    name = f"{Path(direct_on_cpu.__file__)}:{backend}"
    rows = 0
    # FlexAttention really runs, and each of its calls takes a while.
    for case in drawn(name, count if backend != "FLEX_ATTENTION" else count // 5):
        verdict = run(case)
        assert (verdict.unsupported, verdict.observations) == (None, ())
        rows += verdict.rows
    assert rows
