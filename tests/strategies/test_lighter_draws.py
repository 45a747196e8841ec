"""Work of Hypothesis that draws of cases do without."""

import random
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import control, core, given, settings
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.strategies import sampled_from, tuples

from attnfuzz.harness.search import examples
from attnfuzz.harness.search.examples import drawn_cases, run_examples
from attnfuzz.reference.case import Case
from attnfuzz.strategies.lighter_draws import lighter_draws


def drawn(count: int = 20) -> list[Case]:
    cases: list[Case] = []
    run_examples(drawn_cases("torch_sdpa"), cases.append, examples=count, seed_of=7)
    return cases


def test_the_same_cases_are_drawn_with_less_work(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    monkeypatch.setattr(ConjectureRunner, "generate_mutations_from", lambda *_: looked.append(1))
    recorded: list[object] = []
    whole = ConjectureData.draw

    def draw(*given: Any, **named: Any) -> Any:
        recorded.append(1)
        return whole(*given, **named)

    monkeypatch.setattr(ConjectureData, "draw", draw)
    random.seed(3)
    before = random.getstate()
    lighter = drawn()
    assert not looked
    # Of each case, that of the case itself.
    assert len(recorded) == len(lighter)
    assert random.getstate() == before
    monkeypatch.undo()
    monkeypatch.setattr(examples, "lighter_draws", nullcontext)
    assert drawn() == lighter


def test_global_random_numbers_are_not_seeded_for_each_case() -> None:
    seen: list[float] = []
    random.seed(3)
    run_examples(drawn_cases("torch_sdpa"), lambda _: seen.append(random.random()), examples=5, seed_of=7)
    assert len(set(seen)) == 5


def test_tests_after_a_search_run_as_before_it() -> None:
    names = [
        (ConjectureRunner, "generate_mutations_from"),
        (core, "deterministic_PRNG"),
        (control, "deprecate_random_in_strategy"),
        (ConjectureData, "_pooled_constraints"),
        (ConjectureData, "draw"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    with pytest.raises(KeyError), lighter_draws():
        raise KeyError
    assert [getattr(owner, name) for owner, name in names] == before


def test_a_release_with_other_names_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ConjectureRunner, "generate_mutations_from")
    monkeypatch.delattr(core, "deterministic_PRNG")
    monkeypatch.delattr(ConjectureData, "_pooled_constraints")
    with lighter_draws():
        assert not hasattr(ConjectureRunner, "generate_mutations_from")
        assert not hasattr(core, "deterministic_PRNG")
        assert not hasattr(ConjectureData, "_pooled_constraints")


def test_a_filter_of_options_still_refuses_some() -> None:
    strategy = sampled_from(range(10)).filter(lambda number: number % 2)
    seen: list[int] = []

    @settings(max_examples=30, database=None, derandomize=True)
    @given(tuples(strategy, sampled_from("ab").map(str.upper)))
    def example(pair: tuple[int, str]) -> None:
        assert pair[1] in "AB"
        seen.append(pair[0])

    with lighter_draws():
        example()
    assert {number % 2 for number in seen} == {1}
    assert len(set(seen)) > 1
