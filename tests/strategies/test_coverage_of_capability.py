"""What is drawn is valid and supported, for backends of every sort."""

from collections.abc import Callable
from functools import reduce
from operator import or_

import pytest
from capabilities import NARROW
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace
from repetition import examples

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch
from attnfuzz.reference.validity import validate
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.coverage import impossible, pair_bits, pairs_in

Draw = Callable[[SearchStrategy[Case], int], list[Case]]


@pytest.mark.slow
def test_every_drawn_case_is_valid_and_supported(drawn: list[Case], capability: Capability) -> None:
    for case in drawn:
        validate(case)
        assert capability.why_not(case) is None


@pytest.mark.slow
@examples(20, 150)
@pytest.mark.parametrize("name", NARROW)
def test_narrow_capabilities_are_respected(name: str, count: int, draw: Draw) -> None:
    can = NARROW[name]
    drawn = draw(cases(can, name), count)
    assert len(drawn) == count
    for case in drawn:
        validate(case)
        assert can.why_not(case) is None
    reached = pairs_in(reduce(or_, map(pair_bits, drawn)))
    assert {both: impossible(can)[both] for both in impossible(can).keys() & reached} == {}


@pytest.mark.slow
@examples(20, 150)
def test_a_backend_without_padding_has_no_graphs(count: int, draw: Draw) -> None:
    name = "graphs without padding"
    drawn = draw(cases(NARROW[name], name), count)
    assert all(step.launch is Launch.EAGER for case in drawn for step in case.steps)


@pytest.mark.slow
def test_cases_are_unrelated_to_each_other(drawn: list[Case]) -> None:
    assert len({case.steps for case in drawn}) >= 0.9 * len(drawn)
    assert len({(case.geometry, case.pages, case.views, case.values) for case in drawn}) >= 0.9 * len(drawn)


def test_the_same_seed_draws_the_same_cases_for_any_name(draw: Draw) -> None:
    one, other = (draw(cases(NARROW["unusual pages"], name), 15) for name in ("one", "other"))
    assert one == [replace(case, backend="one") for case in other]
