"""What a replay copies into the static tensors of a graph runner."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_cases import HEADS, step

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.sglang.graph_buffers import GraphBuffers
from attnfuzz.kernels.sglang.orders import GraphPlanner
from attnfuzz.reference.case import Case, Mode

STRIDE = 2


@pytest.fixture
def bench(bench_of: Callable[..., Bench]) -> Bench:
    """Memory for buffers."""
    return bench_of(Case(backend="any", geometry=HEADS, steps=(step(Mode.DECODE, (1, 1), stride=1),)))


def buffers_of(bench: Bench, planner: GraphPlanner, mode: Mode) -> GraphBuffers:
    return GraphBuffers.allocate(bench, planner, mode, batch=4, stride=STRIDE, fill=1)


def batch_of(rows: list[int], *, accepted: list[int] | None = None) -> Any:
    lens = accepted or [STRIDE] * len(rows)
    tokens = sum(lens)
    return SimpleNamespace(
        batch_size=len(rows),
        input_ids=torch.ones(tokens, dtype=torch.int64),
        positions=torch.arange(tokens),
        out_cache_loc=torch.arange(64, 64 + tokens),
        req_pool_indices=torch.tensor(rows),
        seq_lens=torch.tensor([10 + row for row in rows]),
        seq_lens_cpu=torch.tensor([10 + row for row in rows]),
        seq_lens_sum=0,
        extend_seq_lens=torch.tensor(lens, dtype=torch.int32),
        extend_seq_lens_cpu=lens,
        spec_info=SimpleNamespace(accept_length=torch.tensor(lens, dtype=torch.int32), positions=None),
    )


def test_padded_rows_have_the_fill_length_and_write_to_slot_0(bench: Bench) -> None:
    buffers = buffers_of(bench, GraphPlanner.ARGUMENTS, Mode.TARGET_VERIFY)
    buffers.fill_from(batch_of([5, 6, 7, 8]), 4)
    buffers.fill_from(batch_of([5]), 4)
    assert buffers.seq_lens.tolist() == [15, 1, 1, 1]
    assert buffers.seq_lens_cpu.tolist() == [15, 1, 1, 1]
    assert buffers.out_cache_loc.tolist() == [64, 65, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("planner", "rows"), [(GraphPlanner.ARGUMENTS, [9, 6, 7, 8]), (GraphPlanner.IN_AND_OUT, [9, 0, 0, 0])]
)
def test_padded_rows_keep_an_earlier_request_until_versions_zero_them(
    bench: Bench, planner: GraphPlanner, rows: list[int]
) -> None:
    buffers = buffers_of(bench, planner, Mode.DECODE)
    buffers.fill_from(batch_of([5, 6, 7, 8]), 4)
    buffers.fill_from(batch_of([9]), 4)
    assert buffers.req_pool_indices.tolist() == rows


def test_a_ragged_draft_extend_lies_at_the_front_and_padded_rows_accept_everything(bench: Bench) -> None:
    buffers = buffers_of(bench, GraphPlanner.ARGUMENTS, Mode.DRAFT_EXTEND)
    batch = batch_of([5, 6], accepted=[1, 2])
    buffers.fill_from(batch, 4)
    assert buffers.out_cache_loc.tolist() == [64, 65, 66, 0, 0, 0, 0, 0]
    assert buffers.accepted_tokens.tolist() == [1, 2, STRIDE, STRIDE]
    assert batch.spec_info.accept_length.tolist() == [1, 2, STRIDE, STRIDE]
    assert batch.spec_info.extend_seq_lens_cpu == [1, 2, STRIDE, STRIDE]


def test_a_batch_that_is_captured_lies_in_the_buffers(bench: Bench) -> None:
    buffers = buffers_of(bench, GraphPlanner.ARGUMENTS, Mode.DRAFT_EXTEND)
    batch = batch_of([])
    buffers.describe(batch, 2)
    buffers.seq_lens[0] = 77
    assert batch.seq_lens.tolist() == [77, 1]
    assert batch.input_ids.shape[0] == 2 * STRIDE
    assert batch.spec_info.accept_length.tolist() == [STRIDE, STRIDE]


def test_a_capture_after_a_replay_has_the_lengths_of_one_before(bench: Bench) -> None:
    buffers = buffers_of(bench, GraphPlanner.IN_AND_OUT, Mode.TARGET_VERIFY)
    buffers.fill_from(batch_of([5, 6]), 4)
    with buffers.as_before_replays():
        assert buffers.seq_lens.tolist() == buffers.seq_lens_cpu.tolist() == [1, 1, 1, 1]
    assert buffers.seq_lens.tolist() == buffers.seq_lens_cpu.tolist() == [15, 16, 1, 1]
