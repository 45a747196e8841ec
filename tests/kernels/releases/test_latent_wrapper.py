"""The stand-in for FlashInfer's wrapper of latents, alone: kernels take lengths and rows from the plan."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, below
from attnfuzz.kernels.releases.latent_wrapper import LatentWrapper
from attnfuzz.kernels.releases.recording import record
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.geometry import Geometry

RANK, ROPE, HEADS = 8, 4, 2
STEP = Step(mode=Mode.DECODE, requests=(Request(0, 1, 1),), padded_tokens=1, tokens_per_request=1)
CASE = Case(
    backend="trtllm_mha",
    geometry=Geometry(q_heads=2, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=4),
    steps=(STEP,),
)


@pytest.fixture(params=["0.6.3", "0.7.2"])
def bench(request: pytest.FixtureRequest, bench_of: Callable[[Case], Bench]) -> Iterator[SimpleNamespace]:
    """The bench on which a release runs, and whether its FlashInfer compares lengths with pages."""
    made = bench_of(CASE)
    with below(Version(request.param), made, KernelsBelow(())):
        yield SimpleNamespace(own=made, checks=request.param == "0.7.2")


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def plan(wrapper: Any, lengths: tuple[int, ...], *, indices: torch.Tensor | None = None, rows: int = 1) -> None:
    starts = ints(0, *torch.tensor(lengths).cumsum(0).tolist())
    ids = torch.arange(1, 1 + sum(lengths), dtype=torch.int32) if indices is None else indices
    first = torch.arange(len(lengths) + 1, dtype=torch.int32) * rows
    layer = (HEADS, RANK, ROPE, 1, True, 0.5, torch.float32, torch.float32)
    wrapper.plan(first, starts, ids, ints(*lengths), *layer)


def inputs(bench: SimpleNamespace, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [rows, heads, rank + rope], and a cache of pages of one token."""
    torch.manual_seed(0)
    return torch.randn(rows, HEADS, RANK + ROPE), bench.own.memory.copy("cache", torch.randn(12, 1, RANK + ROPE))


def run(wrapper: LatentWrapper, query: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(*query.shape[:-1], RANK)
    wrapper.run(query[..., :RANK], query[..., RANK:], cache[..., :RANK], cache[..., RANK:], out=out)
    return out


def due(query: torch.Tensor, cache: torch.Tensor, first: int, length: int) -> torch.Tensor:
    keys = cache[first : first + length, 0]
    attended: torch.Tensor = torch.softmax(0.5 * query @ keys.T, dim=-1) @ keys[:, :RANK]
    return attended


def test_rows_attend_to_their_requests_pages(bench: SimpleNamespace) -> None:
    wrapper, (query, cache) = LatentWrapper(torch.zeros(8)), inputs(bench, 4)
    plan(wrapper, (5, 3), rows=2)
    out = run(wrapper, query, cache)
    for row, (first, length) in enumerate([(1, 4), (1, 5), (6, 2), (6, 3)]):
        torch.testing.assert_close(out[row], due(query[row], cache, first, length))


def test_lengths_that_are_not_those_of_the_pages_are_refused_since_0_7(bench: SimpleNamespace) -> None:
    wrapper, (query, cache) = LatentWrapper(torch.zeros(8)), inputs(bench, 1)
    layer = (HEADS, RANK, ROPE, 1, False, 0.5, torch.float32, torch.float32)
    if bench.checks:
        with pytest.raises(ValueError, match="page counts in kv_indptr must equal"):
            wrapper.plan(ints(0, 1), ints(0, 5), ints(1, 2, 3, 4, 5), ints(3), *layer)
        return
    wrapper.plan(ints(0, 1), ints(0, 5), ints(1, 2, 3, 4, 5), ints(3), *layer)
    torch.testing.assert_close(run(wrapper, query, cache)[0], due(query[0], cache, 1, 3))


def test_a_replay_reads_the_plan_made_before_it_and_the_buffer_of_pages(bench: SimpleNamespace) -> None:
    """Only the fast plan of the compiled module writes no buffer."""
    buffers = {"qo_indptr": ints(0, 0), "kv_indptr": ints(0, 0), "kv_indices": torch.zeros(12, dtype=torch.int32)}
    wrapper = LatentWrapper(torch.zeros(8), use_cuda_graph=True, **buffers, kv_len_arr=ints(0))
    query, cache = inputs(bench, 1)
    plan(wrapper, (2,))
    with record(bench.own) as graph:
        out = run(wrapper, query, cache)
    buffers["kv_indices"].copy_(torch.arange(3, 15))
    wrapper._cached_module.plan(None, None, None, ints(0, 1), ints(0, 4), ints(4), HEADS, RANK, False)
    graph.replay()
    torch.testing.assert_close(out[0], due(query[0], cache, 3, 4))
    with pytest.raises(RuntimeError, match="kv_len_arr is torch"):
        wrapper._cached_module.plan(None, None, None, ints(0, 1), ints(0, 4), ints(4).long(), HEADS, RANK, False)


def test_other_heads_and_batches_of_a_graph_are_refused(bench: SimpleNamespace) -> None:
    wrapper, (query, cache) = LatentWrapper(torch.zeros(8)), inputs(bench, 1)
    plan(wrapper, (2,))
    with pytest.raises(ValueError, match="planned for"):
        run(wrapper, query[:, :1], cache)
    lists = {"qo_indptr": ints(0, 0), "kv_indptr": ints(0, 0), "kv_indices": ints(0), "kv_len_arr": ints(0)}
    with pytest.raises(ValueError, match="its buffer in the graph"):
        plan(LatentWrapper(torch.zeros(8), use_cuda_graph=True, **lists), (1, 1))
