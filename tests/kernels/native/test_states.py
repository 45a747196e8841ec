"""Merging attention states, and the fixup of rows without keys."""

from collections.abc import Callable

import pytest
import torch

from attnfuzz.kernels.native import ops
from attnfuzz.kernels.planning import fixup

INF = float("inf")


def state(*lses: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One row per LSE, whose values are random but 0 where the LSE is -inf."""
    lse = torch.tensor(lses).unsqueeze(1)
    return torch.randn(len(lses), 1, 8).masked_fill(lse.isneginf().unsqueeze(2), 0.0), lse


def test_merging_with_an_empty_state_changes_nothing_and_two_empty_states_stay_empty() -> None:
    (v, s), (v_other, s_other) = state(1.5, -INF, -INF), state(-INF, 2.5, -INF)
    expected = torch.stack([v[0], v_other[1], torch.zeros(1, 8)])
    ops.merge_state_in_place(v, s, v_other, s_other)
    assert v.equal(expected)
    assert s.flatten().tolist() == [1.5, 2.5, -INF]


def test_merging_spreads_nan_of_either_state() -> None:
    (v, s), (v_other, s_other) = state(0.0, 0.0), state(torch.nan, -INF)
    v_other[1] = torch.nan
    ops.merge_state_in_place(v, s, v_other, s_other)
    assert v.isnan().all()
    assert s.isnan().flatten().tolist() == [True, False]


def test_masked_rows_are_not_merged() -> None:
    (v, s), (v_other, s_other) = state(0.0, 0.0), state(1.0, 1.0)
    before = v.clone()
    ops.merge_state_in_place(v, s, v_other, s_other, torch.tensor([False, True]))
    assert v[0].equal(before[0])
    assert s[0] == 0
    assert s[1] > 1


def test_fixup_leaves_rows_with_keys_and_rows_of_no_request_bit_for_bit() -> None:
    for function in (ops.fixup_zero_kv_rows, fixup.fixup_zero_kv_rows):
        out, lse = torch.full((5, 2, 4), torch.nan), torch.full((5, 2), 3.0)
        lengths = torch.tensor([7, 0, -1], dtype=torch.int32)
        function(out, lse, lengths, torch.tensor([0, 1, 3, 4], dtype=torch.int32), 2)
        assert out[1:3].eq(0).all()
        assert lse[1:3].eq(-INF).all()
        assert out[[0, 3, 4]].isnan().all()
        assert lse[[0, 3, 4]].eq(3).all()


@pytest.mark.parametrize("function", [ops.fixup_zero_kv_rows, fixup.fixup_zero_kv_rows])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("out", torch.zeros(2, 4)),
        ("out", torch.zeros(2, 1, 4, dtype=torch.float64)),
        ("lse", torch.zeros(2, 2)),
        ("lse", torch.zeros(2, 1, dtype=torch.bfloat16)),
        ("kv_lens", torch.zeros(1, dtype=torch.int64)),
        ("cum_seq_lens", torch.zeros(3, dtype=torch.int32)),
        ("max_seq_len", -1),
    ],
)
def test_fixup_names_the_argument_that_is_wrong(function: Callable[..., None], name: str, value: object) -> None:
    arguments: dict[str, object] = {
        "out": torch.zeros(2, 1, 4),
        "lse": torch.zeros(2, 1),
        "kv_lens": torch.zeros(1, dtype=torch.int32),
        "cum_seq_lens": torch.tensor([0, 2], dtype=torch.int32),
        "max_seq_len": 2,
    }
    function(**arguments)
    with pytest.raises(ValueError, match=f"^{name} "):
        function(**{**arguments, name: value})
