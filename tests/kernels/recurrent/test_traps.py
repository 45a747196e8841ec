"""The slots, starts and counts that the recurrent kernels trust, each seen to have its effect (TRAPS.md)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnfuzz.kernels.native import build
from attnfuzz.kernels.native import recurrent_ops as ops

HEADS, DIM = 1, 2
NEVER = -5.0


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    build.load()


def int32(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pool(slots: int = 4) -> torch.Tensor:
    """A pool whose slot n has the number n in all elements."""
    return torch.arange(slots, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, HEADS, DIM, DIM).clone()


def run(state: torch.Tensor, slots: torch.Tensor, starts: torch.Tensor, **changes: Any) -> torch.Tensor:
    """Run lightning attention on tokens of zeros with a decay of 1: a row's new state is the one that it had."""
    tokens = int(starts.max())
    zeros, out = torch.zeros(tokens, HEADS, DIM), torch.full((tokens, HEADS, DIM), NEVER)
    given = {"target_slots": slots, "has_initial_state": torch.ones(len(slots), dtype=torch.bool), **changes}
    ops.lightning_attention(
        query=zeros + 1, key=zeros, value=zeros, slope=torch.zeros(HEADS), state=state, slots=slots, cu_seqlens=starts,
        out=out, scale=1.0, **given,
    )  # fmt: skip
    return out[:, 0, 0]


def verify(state: torch.Tensor, table: torch.Tensor, accepted: torch.Tensor) -> torch.Tensor:
    """Run the delta rule without effect for one draft of each row: outputs are sums of the state that was read."""
    rows = len(table)
    zeros, out = torch.zeros(rows, HEADS, DIM), torch.full((rows, HEADS, DIM), NEVER)
    gates = torch.full((rows, HEADS), -1e9)
    ops.gated_delta_rule_verify(
        query=zeros + 1, key=zeros, value=zeros, a=gates, b=gates, A_log=torch.zeros(HEADS), dt_bias=torch.zeros(HEADS),
        state=state, draft_slots=table, draft_targets=table, cu_seqlens=torch.arange(rows + 1, dtype=torch.int32),
        num_accepted=accepted, out=out, scale=1.0, eps=1e-6, normed=False,
    )  # fmt: skip
    return out[:, 0, 0] / DIM


def test_rows_of_any_negative_slot_are_skipped() -> None:
    state = pool()
    assert run(state, int32(2, -1, -7), int32(0, 1, 2, 3)).tolist() == [2.0 * DIM, NEVER, NEVER]
    assert torch.equal(state, pool())


def test_a_slot_past_the_pool_is_followed() -> None:
    whole = pool(6)
    assert run(whole[:4], int32(1), int32(0, 1), target_slots=int32(5)).tolist() == [1.0 * DIM]
    assert whole[5].unique().tolist() == [1.0]


def test_the_number_of_accepted_tokens_is_not_compared_with_the_table() -> None:
    state, table = pool(5), int32([1, 2], [3, 4])
    assert verify(state, table, int32(1, 2)).tolist() == [1.0, 4.0]
    assert verify(pool(5), table, int32(0, 1)).tolist() == [1.0, 3.0]
    # The second row's first column follows the first row's last one.
    assert verify(pool(5), table, int32(3, 1)).tolist() == [3.0, 3.0]


def test_starts_that_descend_are_a_row_without_tokens() -> None:
    state = pool()
    assert run(state, int32(1, 2, 3), int32(0, 2, 1, 2)).tolist() == [1.0 * DIM, 3.0 * DIM]
    assert torch.equal(state, pool())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: run(pool(), torch.tensor([1]), int32(0, 1)), "slots must be int32"),
        (lambda: run(pool(), int32(1), torch.tensor([0, 1])), "cu_seqlens must be int32"),
        (lambda: run(pool().transpose(2, 3), int32(1), int32(0, 1)), "a slot's states must be contiguous"),
    ],
)
def test_dtypes_and_strides_are_refused_by_name(call: Callable[[], object], words: str) -> None:
    with pytest.raises(Exception, match=words):
        call()
