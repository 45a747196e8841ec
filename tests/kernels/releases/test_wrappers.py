"""Stand-ins for FlashInfer's wrappers, alone: a plan is kept, and one that was made for another batch shows."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, below
from attnfuzz.kernels.releases.recording import record
from attnfuzz.kernels.releases.wrappers import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    fast_decode_plan,
)
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

PAGE, DIM = 4, 8
GEOMETRY = Geometry(
    q_heads=2, kv_heads=1, head_dim_qk=DIM, head_dim_vo=DIM, page_size=PAGE, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32
)
STEP = Step(mode=Mode.DECODE, requests=(Request(0, 1, 1),), padded_tokens=1, tokens_per_request=1)
LAYER = {"num_qo_heads": 2, "num_kv_heads": 1, "page_size": PAGE, "sm_scale": 0.5, "q_data_type": torch.float32}


@pytest.fixture(params=[(8, 0), (9, 0)], ids=["fa2", "fa3"])
def bench(request: pytest.FixtureRequest, bench_of: Callable[[Case], Bench]) -> Iterator[Bench]:
    """A bench on which a release with FlashInfer 0.7.2 runs, as on Ampere and on Hopper."""
    made = bench_of(Case(backend="trtllm_mha", geometry=GEOMETRY, steps=(STEP,)))
    gpu = mock.patch.object(torch.cuda, "get_device_capability", return_value=request.param)
    with gpu, below(Version("0.7.2"), made, KernelsBelow(())):
        yield made


def pool() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(6, 2, PAGE, 1, DIM)


def metadata(lengths: list[int]) -> dict[str, torch.Tensor]:
    """The pages of requests, from page 1 on, and their last lengths, on the host."""
    counts = torch.tensor([-(-length // PAGE) for length in lengths], dtype=torch.int32)
    indptr = torch.cat((torch.zeros(1, dtype=torch.int32), counts.cumsum(0, dtype=torch.int32)))
    last = torch.tensor([(length - 1) % PAGE + 1 if length else 0 for length in lengths], dtype=torch.int32)
    return {"indptr": indptr, "indices": torch.arange(1, 1 + int(indptr[-1]), dtype=torch.int32), "last_page_len": last}


def due(query: torch.Tensor, cache: torch.Tensor, first_page: int, length: int) -> torch.Tensor:
    """The attention of one query [heads, dim] to a request's keys."""
    keys, values = cache[first_page:].transpose(0, 1).flatten(1, 2)[:, :length, 0]
    attended: torch.Tensor = torch.softmax(0.5 * query @ keys.T, dim=-1) @ values
    return attended


def prefilled(lengths: list[int], query: torch.Tensor, cache: torch.Tensor, **more: Any) -> torch.Tensor:
    """Plan and run a batch with one query each on the prefill wrapper."""
    wrapper = BatchPrefillWithPagedKVCacheWrapper(torch.zeros(64, dtype=torch.uint8), "NHD")
    given = {f"paged_kv_{name}": value for name, value in metadata(lengths).items()}
    rows = torch.arange(len(lengths) + 1, dtype=torch.int32)
    wrapper.plan(qo_indptr=rows, **given, head_dim_qk=DIM, causal=True, **LAYER)
    attended: torch.Tensor = wrapper.run(query, cache, out=torch.zeros_like(query), **more)
    return attended


@pytest.mark.usefixtures("bench")
def test_a_plan_attends_to_the_pages_of_each_request() -> None:
    query, cache = torch.randn(2, 2, DIM), pool()
    out = prefilled([6, 3], query, cache)
    torch.testing.assert_close(out, torch.stack((due(query[0], cache, 1, 6), due(query[1], cache, 3, 3))))


@pytest.mark.usefixtures("bench")
def test_scales_of_queries_and_values_count_whatever_the_dtypes() -> None:
    query, cache = torch.randn(1, 2, DIM), pool()
    out = prefilled([5], query, cache, q_scale=2.0, v_scale=0.5)
    torch.testing.assert_close(out[0], 0.5 * due(2 * query[0], cache, 1, 5))


@pytest.mark.usefixtures("bench")
def test_a_query_of_another_dtype_than_planned_is_refused() -> None:
    with pytest.raises(ValueError, match=r"q is torch\.bfloat16"):
        prefilled([5], torch.zeros(1, 2, DIM, dtype=torch.bfloat16), pool())


@pytest.mark.usefixtures("bench")
def test_other_heads_dims_or_pages_than_planned_are_refused() -> None:
    query, cache = torch.zeros(1, 2, DIM), pool()
    for other in (
        (torch.zeros(1, 4, DIM), cache),
        (query, torch.zeros(6, 2, PAGE, 2, DIM)),
        (torch.zeros(1, 2, 2 * DIM), cache),
        (query, torch.zeros(6, 2, 2 * PAGE, 1, DIM)),
    ):
        with pytest.raises(ValueError, match=r"planned for \(2, 1, 8, 4\)"):
            prefilled([5], *other)


@pytest.mark.usefixtures("bench")
def test_a_request_without_pages_has_no_keys_and_no_mask() -> None:
    wrapper = BatchPrefillWithPagedKVCacheWrapper(torch.zeros(64, dtype=torch.uint8), "NHD", backend="fa2")
    tokens = torch.randn(6, 1, DIM), torch.randn(6, 1, DIM)
    indptr, query = torch.tensor([0, 0, 2], dtype=torch.int32), torch.randn(2, 2, DIM)
    layer = {**LAYER, "page_size": 1}
    pages = {"paged_kv_indptr": indptr, "paged_kv_indices": torch.tensor([3, 4], dtype=torch.int32)}
    last = torch.ones(2, dtype=torch.int32)
    rows = torch.arange(3, dtype=torch.int32)
    for mask in (None, torch.tensor([False, True])):
        first = 3 if mask is None else 4
        wrapper.begin_forward(rows, **pages, paged_kv_last_page_len=last, head_dim_qk=DIM, custom_mask=mask, **layer)
        out, lse = wrapper.forward_return_lse(query, tokens, sm_scale=0.5)
        assert not out[0].any()
        assert lse[0].tolist() == [-torch.inf, -torch.inf]
        keys, values = (part[first:5, 0] for part in tokens)
        torch.testing.assert_close(out[1], torch.softmax(0.5 * query[1] @ keys.T, dim=-1) @ values)


@pytest.mark.usefixtures("bench")
def test_a_mask_selects_keys_instead_of_causality() -> None:
    query, cache = torch.randn(2, 2, DIM), pool()
    mask = torch.tensor([[True, False, True, False, False], [False, True, True, True, True]])
    wrapper = BatchPrefillWithPagedKVCacheWrapper(torch.zeros(64, dtype=torch.uint8), "NHD", backend="fa2")
    given = {f"paged_kv_{name}": value for name, value in metadata([5]).items()}
    rows = torch.tensor([0, 2], dtype=torch.int32)
    wrapper.plan(qo_indptr=rows, **given, head_dim_qk=DIM, causal=True, custom_mask=mask.flatten(), **LAYER)
    out = wrapper.run(query, cache)
    keys, values = cache[1:].transpose(0, 1).flatten(1, 2)[:, :5, 0]
    for row, seen in enumerate(mask):
        torch.testing.assert_close(out[row], torch.softmax(0.5 * query[row] @ keys[seen].T, dim=-1) @ values[seen])


class Graph:
    """A wrapper of decodes with the buffers of a graph for two requests, captured on requests with one key each."""

    def __init__(self, bench: Bench) -> None:
        self.buffers = {
            "paged_kv_indptr_buffer": torch.zeros(3, dtype=torch.int32),
            "paged_kv_indices_buffer": torch.zeros(6, dtype=torch.int32),
            "paged_kv_last_page_len_buffer": torch.zeros(2, dtype=torch.int32),
        }
        self.wrapper = BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(64, dtype=torch.uint8), "NHD", use_cuda_graph=True, use_tensor_cores=True, **self.buffers
        )
        self.query, self.cache, self.out = torch.randn(2, 2, DIM), pool(), torch.zeros(2, 2, DIM)
        self.wrapper.plan(**metadata([1, 1]), head_dim=DIM, **LAYER)
        with record(bench) as self.graph:
            self.wrapper.run(self.query, self.cache, out=self.out)

    def fill(self, lengths: list[int]) -> dict[str, torch.Tensor]:
        """Write a batch to the buffers, without a plan."""
        given = metadata(lengths)
        for name, value in given.items():
            self.buffers[f"paged_kv_{name}_buffer"][: len(value)] = value
        return given

    def replay(self) -> torch.Tensor:
        """The output of a replay."""
        self.graph.replay()
        return self.out


def test_a_replay_reads_the_buffers_and_the_last_plan(bench: Bench) -> None:
    graph = Graph(bench)
    fast_decode_plan(graph.wrapper, **graph.fill([6, 3]), head_dim=DIM, **LAYER)
    out = graph.replay()
    wanted = torch.stack((due(graph.query[0], graph.cache, 1, 6), due(graph.query[1], graph.cache, 3, 3)))
    torch.testing.assert_close(out, wanted)


def test_a_replay_without_a_new_plan_does_not_see_the_keys_behind_the_planned_ones(bench: Bench) -> None:
    graph = Graph(bench)
    graph.fill([6, 3])
    out = graph.replay()
    assert not torch.allclose(out[0], due(graph.query[0], graph.cache, 1, 6))


def test_a_batch_of_another_size_than_the_graph_is_refused(bench: Bench) -> None:
    graph = Graph(bench)
    with pytest.raises(ValueError, match="a batch of 3 in a graph of 2"):
        fast_decode_plan(graph.wrapper, **metadata([1, 1, 1]), head_dim=DIM, **LAYER)


def test_a_plan_for_another_layer_than_that_of_the_graph_is_refused(bench: Bench) -> None:
    graph = Graph(bench)
    swapped = {**LAYER, "page_size": DIM, "head_dim": PAGE}
    with pytest.raises(ValueError, match=r"are \(2, 1, 4, 8\), but its graph has runs of \(2, 1, 8, 4\)"):
        fast_decode_plan(graph.wrapper, **graph.fill([6, 3]), **swapped)


@pytest.mark.usefixtures("bench")
def test_an_argument_that_the_pinned_flashinfer_lacks_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="sinkhole"):
        prefilled([5], torch.zeros(1, 2, DIM), pool(), sinkhole=1)
