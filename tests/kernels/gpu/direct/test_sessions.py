"""The direct backends' sessions, judged with stand-ins that answer what their calls' own metadata says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from repetition import examples
from small_cases import drawn, lighter, narrowest, run, step

from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.reference.case import Case, Mode, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

pytest.importorskip("flashinfer", reason="calls are bound to the installed signatures")
import direct_on_cpu
import fake_planned
import flashinfer

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
@examples(6, 30)
@pytest.mark.parametrize("backend", BACKENDS)
def test_drawn_cases_pass(backend: str, count: int) -> None:
    name = f"{Path(direct_on_cpu.__file__)}:{backend}"
    rows = 0
    # FlexAttention really runs, and each of its calls takes a while.
    few = any(word in backend for word in PLANNED)
    cases = drawn(name, count // 2 if few else count // 5 if backend == "FLEX_ATTENTION" else count)
    # Batches of planned classes have hundreds of queries, answered in fp64.
    for case in narrowest(cases, 2) if few else lighter(cases):
        verdict = run(case)
        # A form that is refused by a graph's capture leaves no graph, and an older release lacks arguments.
        known = (*REFUSED.get(backend, ()), "a graph with ", f"flashinfer {flashinfer.__version__}: ")
        assert verdict.unsupported is None or verdict.unsupported.startswith(known)
        assert bool(verdict.observations) <= (backend in WRONG)
        rows += verdict.rows
    assert rows or backend in REFUSED


@pytest.mark.parametrize("backend", ["FA2_BLOCK_SPARSE", "FA3_BLOCK_SPARSE"])
def test_block_sparse_attention_may_round_parts_before_a_merge(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks of few rows run on CUDA cores, which split the keys.
    whole = fake_planned.BlockSparseAttentionWrapper.run

    def in_parts(self: Any, **arguments: Any) -> None:
        whole(self, **arguments)
        value = arguments["v"].float()
        parts = [part.mean(dim=0).to(torch.bfloat16).float() * len(part) for part in (value[:128], value[128:])]
        arguments["out"].copy_((parts[0] + parts[1]) / len(value))

    monkeypatch.setattr(fake_planned.BlockSparseAttentionWrapper, "run", in_parts)
    geometry = Geometry(
        q_heads=1,
        kv_heads=1,
        head_dim_qk=64,
        head_dim_vo=64,
        page_size=1,
        dtype=DType.BFLOAT16,
        kv_dtype=DType.BFLOAT16,
    )
    # The seed is one of a query that is 0, so that all weights are equal.
    case = Case(
        backend=f"{Path(direct_on_cpu.__file__)}:{backend}",
        geometry=geometry,
        steps=(step(Mode.TARGET_VERIFY, (1, 134), stride=1),),
        values=ValueFamily.PROBE,
    )
    assert not run(case).observations
