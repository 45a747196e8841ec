"""The direct backends' sessions, judged with stand-ins that answer what their calls' own metadata says."""

from pathlib import Path

import pytest
from repetition import examples
from small_cases import drawn, narrowest, run

from attnfuzz.kernels.gpu.gpu_backend import GpuBackend

pytest.importorskip("flashinfer", reason="calls are bound to the installed signatures")
import direct_on_cpu

REFUSED = {
    "POD": ("a step of one query token",),
    "BATCH_POD": ("a step of one query token",),
    "SHARED_PREFIX_DECODE": ("a request without a prefix of whole pages",),
    "SHARED_PREFIX_PREFILL": ("a request without a prefix of whole pages",),
}
"""Steps that a class can't run."""
WRONG = {"CASCADE_LEVELS_WINDOW"}
"""A window there ends at each level's own last key."""
PLANNED = ("BATCH_ATTENTION", "POD", "CASCADE", "PREFIX", "SPARSE")
BACKENDS = [name for name in dir(direct_on_cpu) if isinstance(getattr(direct_on_cpu, name), GpuBackend)]


@pytest.mark.slow
@examples(10, 30)
@pytest.mark.parametrize("backend", BACKENDS)
def test_drawn_cases_pass(backend: str, count: int) -> None:
    name = f"{Path(direct_on_cpu.__file__)}:{backend}"
    rows = 0
    # FlexAttention really runs, and each of its calls takes a while.
    few = any(word in backend for word in PLANNED)
    cases = drawn(name, count // 2 if few else count // 5 if backend == "FLEX_ATTENTION" else count)
    # Batches of planned classes have hundreds of queries, answered in fp64.
    for case in narrowest(cases, 3) if few else cases:
        verdict = run(case)
        assert verdict.unsupported is None or verdict.unsupported in REFUSED.get(backend, ())
        assert bool(verdict.observations) <= (backend in WRONG)
        rows += verdict.rows
    assert rows or backend in REFUSED
