"""A slot's tokens and a request's queries are its own: they do not depend on what else a case asks for."""

from collections.abc import Callable

import pytest
import torch
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.kernels.planning.queries import draw_queries, packed_rows
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.case import Case, Launch, Mode, Step, ValueFamily
from attnfuzz.reference.dtypes import DType

EXTEND = step(Mode.EXTEND, (2, 19), (3, 5), (1, 33))


def case_of(*steps: Step, values: ValueFamily = ValueFamily.NORMAL) -> Case:
    return Case(backend="any", geometry=HEADS, steps=steps, values=values, seed=5)


def tokens_of(case: Case, extra: int = 0) -> SlotTokens:
    return SlotTokens(case, heads=2, key_dim=16, value_dim=16, dtype=DType.BFLOAT16, extra=extra)


def reversed_(extend: Step) -> Step:
    return replace(extend, requests=extend.requests[::-1])


def alone(extend: Step) -> Step:
    return replace(extend, requests=extend.requests[:1], padded_tokens=2)


def shorter(extend: Step) -> Step:
    first, *others = extend.requests
    return replace(extend, requests=(replace(first, kv_len=11), *others))


@pytest.mark.parametrize("values", ValueFamily)
@pytest.mark.parametrize("change", [reversed_, alone, shorter])
def test_tokens_are_the_same_beside_others(values: ValueFamily, change: Callable[[Step], Step]) -> None:
    before, after = (tokens_of(case_of(each, values=values)) for each in (EXTEND, change(EXTEND)))
    # As bits: extreme values have NaN.
    for one, other in ((before.keys(0, 11), after.keys(0, 11)), (before.values(0, 11), after.values(0, 11))):
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))


@pytest.mark.parametrize("values", ValueFamily)
def test_tokens_of_slots_and_unowned_tokens_differ(values: ValueFamily) -> None:
    drawn = tokens_of(case_of(EXTEND, values=values), extra=5)
    assert not torch.equal(drawn.values(0, 5), drawn.values(1, 5))
    assert not torch.equal(drawn.values(0, 5), drawn.value[drawn.extra])
    assert len(drawn.key[drawn.extra]) == 5


def test_queries_are_the_same_beside_others_and_behind_captures() -> None:
    def queries(*steps: Step) -> torch.Tensor:
        """Those of slot 0 in the last step."""
        index = len(steps) - 1
        slots = [request.slot for request in steps[index].requests]
        first = packed_rows(steps[index])[slots.index(0)]
        return draw_queries(case_of(*steps), index, steps[index].padded_tokens, 16)[first : first + 2]

    capture = step(Mode.DECODE, rows=4, launch=Launch.CAPTURE)
    expected = queries(EXTEND)
    for steps in ((reversed_(EXTEND),), (alone(EXTEND),), (replace(EXTEND, padded_tokens=9),), (capture, EXTEND)):
        assert torch.equal(queries(*steps), expected)
    assert not torch.equal(queries(EXTEND, EXTEND), expected)


def test_queries_lie_where_their_requests_begin() -> None:
    packed = draw_queries(case_of(EXTEND), 0, 12, 16)
    spread = draw_queries(case_of(EXTEND), 0, 12, 16, first_rows=(0, 4, 8))
    assert torch.equal(spread[[0, 1, 4, 5, 6, 8]], packed[:6])
    assert torch.equal(spread[[2, 3, 7, 9, 10, 11]], packed[6:])
