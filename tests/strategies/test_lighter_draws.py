"""Work of Hypothesis that draws of cases do without."""

import random
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import core
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.engine import ConjectureRunner

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
        (ConjectureData, "draw"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    with pytest.raises(KeyError), lighter_draws():
        raise KeyError
    assert [getattr(owner, name) for owner, name in names] == before


def test_a_release_with_other_names_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ConjectureRunner, "generate_mutations_from")
    monkeypatch.delattr(core, "deterministic_PRNG")
    with lighter_draws():
        assert not hasattr(ConjectureRunner, "generate_mutations_from")
        assert not hasattr(core, "deterministic_PRNG")
