"""Features that every case must have, or none may have."""

from collections.abc import Callable

import pytest
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.features import TABLE
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.coverage import impossible, pair_bits, pairs_in
from attnfuzz.strategies.plain_cases import plain_cases

Draw = Callable[[SearchStrategy[Case], int], list[Case]]

WINDOWED = Capability(windows=True, sinks=True, padding=True, always=("window",), never=("padding", "mode=extend"))


@pytest.mark.slow
def test_every_drawn_case_has_the_features_of_always_and_none_of_never(draw: Draw) -> None:
    reached = 0
    for case in draw(cases(WINDOWED, "mine"), 40):
        words = TABLE.words_of(case)
        assert "window" in words
        assert words.isdisjoint({"padding", "mode=extend"})
        reached |= pair_bits(case)
    assert not impossible(WINDOWED).keys() & pairs_in(reached)


def test_features_that_no_case_has_do_not_count_for_coverage() -> None:
    excluded = {feature for both in impossible(WINDOWED) for feature in both if ("batch=1", feature) in _pairs(both)}
    assert {"window=none", "padding=tokens", "mode=extend"} <= excluded
    assert "window=cuts keys off" not in excluded


def _pairs(both: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return both, both[::-1]


def test_a_rare_relation_is_in_every_case_if_it_must_be(draw: Draw) -> None:
    can = replace(resolve("trtllm_mha").capability, always=("relation=replay as eager",))
    assert {case.relation for case in draw(cases(can, "trtllm_mha"), 10)} == {"replay_as_eager"}


def test_a_related_run_has_nothing_that_is_never_drawn(draw: Draw) -> None:
    can = replace(resolve("trtllm_mha").capability, never=("launch=eager",))
    drawn = draw(cases(can, "trtllm_mha"), 20)
    assert "replay_as_eager" not in {case.relation for case in drawn}


@pytest.mark.parametrize("words", [("window",), ("sinks",), ("window", "soft cap")])
def test_a_kernel_that_needs_a_feature_has_plain_cases(words: tuple[str, ...]) -> None:
    can = Capability(windows=True, sinks=True, soft_cap=True, always=words)
    plain = plain_cases(can, "mine")
    assert {case.steps[0].mode for case in plain} == set(can.modes)
    assert all(set(words) <= TABLE.words_of(case) for case in plain)
