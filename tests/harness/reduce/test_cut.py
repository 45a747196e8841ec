"""Cuts of views and of the buffers below them: what is left holds what it held."""

import pytest
import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.reduce.cut import cut, trim
from attnfuzz.harness.reduce.units import Uncuttable
from attnfuzz.reference.call_validity import validate_calls
from attnfuzz.reference.calls import Argument, Buffer, Call, CallCase, Drawn, View
from attnfuzz.reference.dtypes import DType

NUMBERS = Buffer(name="x", dtype=DType.INT32, size=48, values=tuple(range(48)))
WHOLE = View(buffer="x", shape=(4, 2, 6), stride=(12, 6, 1))
FIRST = View(buffer="x", shape=(4, 6), stride=(12, 1))
SECOND = View(buffer="x", shape=(4, 6), stride=(12, 1), offset=6)


def case_of(*views: View, buffer: Buffer = NUMBERS, writes: tuple[Buffer, ...] = ()) -> CallCase:
    arguments: dict[str, Argument] = {f"v{index}": view for index, view in enumerate(views)}
    return CallCase(backend="any", buffers=(buffer,), calls=(Call(op="op", arguments=arguments, writes=writes),))


def held(case: CallCase) -> list[torch.Tensor]:
    validate_calls(case)
    return list(literal_arguments(case, 0).values())


@pytest.mark.parametrize(
    ("axis", "drop", "left"),
    [(0, range(1, 3), [0, 3]), (1, range(1), [1]), (2, frozenset({0, 2, 4}), [1, 3, 5])],
)
def test_the_kept_positions_keep_their_contents(axis: int, drop: range | frozenset[int], left: list[int]) -> None:
    case = case_of(WHOLE)
    (before,), (after,) = held(case), held(cut(case, {("call", 0, "v0"): {axis: drop}}))
    assert torch.equal(after, before.index_select(axis, torch.tensor(left)))
    assert after.is_contiguous()


def test_views_of_one_buffer_are_cut_together() -> None:
    case = case_of(WHOLE, FIRST, SECOND)
    smaller = cut(case, {("call", 0, "v1"): {0: range(3)}})
    assert [tensor.shape[0] for tensor in held(smaller)] == [1, 1, 1]
    assert [tensor.flatten()[0].item() for tensor in held(smaller)] == [36, 36, 42]
    assert smaller.buffers[0].size == 12


def test_one_half_of_a_pair_can_be_cut() -> None:
    key, value = held(cut(case_of(FIRST, SECOND), {("call", 0, "v0"): {1: range(2, 6)}}))
    assert key.tolist() == [[0, 1], [12, 13], [24, 25], [36, 37]]
    assert value.shape == (4, 6)
    assert value[1].tolist() == list(range(18, 24))


def test_gaps_go_with_the_rows_before_them() -> None:
    gapped = View(buffer="x", shape=(4, 5), stride=(12, 1), offset=1)
    (tensor,) = held(cut(case_of(gapped), {("call", 0, "v0"): {0: frozenset({1, 2})}}))
    assert tensor.tolist() == [[1, 2, 3, 4, 5], [37, 38, 39, 40, 41]]
    assert tensor.stride() == (12, 1)


def test_trimmed_memory_has_no_gaps() -> None:
    gapped = View(buffer="x", shape=(4, 5), stride=(12, 1), offset=1)
    trimmed = trim(case_of(gapped), ["x"])
    (tensor,) = held(trimmed)
    assert tensor.is_contiguous()
    assert tensor.tolist() == [[row * 12 + column for column in range(1, 6)] for row in range(4)]
    assert trimmed.buffers[0].size == 20


def test_later_writes_are_cut_as_well() -> None:
    write = Buffer(name="x", dtype=DType.INT32, size=24, offset=12, values=tuple(range(100, 124)))
    (tensor,) = held(cut(case_of(WHOLE, writes=(write,)), {("call", 0, "v0"): {0: range(1, 2)}}))
    assert tensor[:, 0, 0].tolist() == [0, 112, 36]


def test_other_dtypes_of_one_buffer_are_cut_by_their_bytes() -> None:
    narrow = View(buffer="x", shape=(4, 24), stride=(24, 1), dtype=DType.BFLOAT16)
    _, tensor = held(cut(case_of(WHOLE, narrow), {("call", 0, "v0"): {0: range(2)}}))
    assert tensor.shape == (2, 24)


def test_a_cut_that_leaves_no_strides_is_refused() -> None:
    flat = View(buffer="x", shape=(48,), stride=(1,))
    uneven = View(buffer="x", shape=(3, 7), stride=(7, 1))
    assert held(cut(case_of(WHOLE, flat), {("call", 0, "v0"): {0: range(2)}}))[1].shape == (24,)
    with pytest.raises(Uncuttable, match="no strides"):
        cut(case_of(WHOLE, uneven), {("call", 0, "v0"): {0: frozenset({1})}})


def test_drawn_content_stays_drawn_where_nothing_is_answered() -> None:
    drawn = Buffer(name="x", dtype=DType.BFLOAT16, size=48, drawn=Drawn(seed=1))
    smaller = cut(case_of(WHOLE, buffer=drawn), {("call", 0, "v0"): {0: range(2)}})
    assert smaller.buffers == (replace(drawn, size=24),)


def test_large_pools_are_taken_in_large_units() -> None:
    pool = Buffer(name="x", dtype=DType.BFLOAT16, size=1 << 30, drawn=Drawn(seed=1))
    pages = View(buffer="x", shape=(1 << 10, 1 << 20), stride=(1 << 20, 1))
    smaller = cut(case_of(pages, buffer=pool), {("call", 0, "v0"): {0: range(1, 1 << 10)}})
    assert smaller.buffers[0].size == 1 << 20
