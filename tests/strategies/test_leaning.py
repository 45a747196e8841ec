"""Leaning to features: they are drawn more often, nothing is lost, and shrinking gets as far."""

from collections.abc import Callable

import pytest
from hypothesis.strategies import SearchStrategy
from repetition import examples
from shrunk_cases import shrunk

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.reference.case import Case, Launch, Mode
from attnfuzz.strategies.cases import cases
from attnfuzz.strategies.choices import Choice, WeightedFlag, on
from attnfuzz.strategies.coverage import choose_lean, features_of, pairs_of
from attnfuzz.strategies.lean import Lean

Draw = Callable[[SearchStrategy[Case], int], list[Case]]

CAPABILITY = resolve("trtllm_mha").capability


def share(drawn: list[Case], feature: str) -> float:
    """The share of the cases that have a feature."""
    return sum(feature in features_of(case) for case in drawn) / len(drawn)


@pytest.mark.slow
@examples(40, 120)
@pytest.mark.parametrize(
    ("feature", "times"),
    [
        ("page size=128", 3),
        ("window=a query's own key", 10),
        ("K scale=below 1", 1.5),
        ("relation=batch permuted", 5),
        ("drafts=over 8", 8),
        ("without keys=all", 2),
    ],
)
def test_features_of_a_lean_are_drawn_more_often(
    feature: str, times: float, count: int, mha: list[Case], draw: Draw
) -> None:
    leaning = draw(cases(CAPABILITY, "plain", Lean((feature,))), count)
    assert share(leaning, feature) >= times * share(mha, feature) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("feature", "times"),
    [
        ("batch=over 32", 2.5),
        ("launch=replayed again", 1.3),
    ],
)
def test_features_that_depend_on_other_draws_are_drawn_somewhat_more_often(
    feature: str, times: float, mha: list[Case], draw: Draw
) -> None:
    leaning = draw(cases(CAPABILITY, "plain", Lean((feature,))), 80)
    assert share(leaning, feature) >= times * share(mha, feature) > 0


@pytest.mark.slow
def test_two_features_are_drawn_together_more_often(mha: list[Case], draw: Draw) -> None:
    both = ("drafts=over 8", "page size=128")
    leaning = draw(cases(CAPABILITY, "plain", Lean(both)), 60)
    apart = sum(both in pairs_of(case) for case in mha) / len(mha)
    assert sum(both in pairs_of(case) for case in leaning) / len(leaning) >= max(0.08, 8 * apart)


@pytest.mark.slow
def test_features_outside_a_lean_are_still_drawn(draw: Draw) -> None:
    drawn = draw(cases(CAPABILITY, "plain", Lean(("mode=decode", "page size=1", "longest kv=over 1000"))), 100)
    for feature in (
        *(f"mode={mode}" for mode in Mode.of_kernels()),
        "page size=64",
        "longest kv=1 to 16",
        "batch=over 32",
    ):
        assert share(drawn, feature) > 0


@pytest.mark.slow
@examples(20, 600)
def test_an_empty_lean_changes_no_draws(count: int, draw: Draw) -> None:
    assert draw(cases(CAPABILITY, "plain", Lean()), count) == draw(cases(CAPABILITY, "plain"), count)


def test_favoured_options_get_two_of_three_draws_in_their_old_order() -> None:
    chosen = Choice((1, 2, 3, 4, 5), on("page size"))
    assert chosen.weighed(Lean(("page size=2",))) == (1, *(2,) * 8, 3, 4, 5)
    assert chosen.weighed(Lean(("page size=2", "page size=5"))) == (1, 2, 2, 2, 3, 4, 5, 5, 5)
    assert chosen.weighed(Lean(("mode=decode",))) == (1, 2, 3, 4, 5)


def test_options_that_show_more_of_a_lean_are_favoured_before_those_that_show_less() -> None:
    chosen = Choice(("a", "b", "ab"), tuple)
    assert chosen.weighed(Lean(("a", "b"))) == ("a", "b", *("ab",) * 4)


def test_a_chance_that_is_high_already_stays_as_it_is() -> None:
    assert WeightedFlag(1, 2, ("a",)).weighed(Lean(("a",))) == (False, True, True)
    assert WeightedFlag(3, 1, ("a",)).weighed(Lean(("a",))) == (False,) * 3 + (True,) * 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fails", "launches"),
    [
        (lambda _: True, [Launch.EAGER]),
        (lambda case: any(step.launch is Launch.REPLAY for step in case.steps), [Launch.CAPTURE, Launch.REPLAY]),
    ],
)
def test_shrinking_gets_as_far_with_a_lean(fails: Callable[[Case], bool], launches: list[Launch]) -> None:
    lean = Lean(("batch=over 32", "drafts=over 8", "page size=128", "values=probe", "window=cuts keys off"))
    plainest = shrunk(cases(CAPABILITY, "any", Lean()), lambda _: True).geometry
    # Hypothesis ends in another local minimum for some seeds, with a lean or without.
    ends = (shrunk(cases(CAPABILITY, "any", lean), fails, seed_of=seed) for seed in (7, 4, 5))
    assert any((end.geometry, [step.launch for step in end.steps]) == (plainest, launches) for end in ends)


def test_many_leans_are_not_all_remembered() -> None:
    for number in range(100):
        cases(CAPABILITY, "plain", Lean((f"batch={number}",)))
    remembered = cases.cache_info()
    assert remembered.maxsize is not None
    assert remembered.currsize <= remembered.maxsize < 100


PAIRS = {("a=1", "b=1"), ("b=1", "c=1")}


def test_a_lean_combines_features_that_were_reached_separately() -> None:
    unreached = {("a=1", "c=1"), ("a=1", "d=1")}
    assert choose_lean(unreached, PAIRS, 1) == Lean(("a=1", "c=1"))


def test_features_that_were_never_reached_come_last() -> None:
    assert choose_lean({("a=1", "d=1")}, PAIRS, 1) == Lean(("d=1",))


def test_there_is_no_lean_before_the_first_case_and_without_unreached_pairs() -> None:
    assert choose_lean(PAIRS, (), 1) == Lean()
    assert choose_lean((), PAIRS, 1) == Lean()


def test_a_lean_has_few_features_and_depends_on_the_seed_alone() -> None:
    features = [f"a{number}=1" for number in range(40)]
    reached = {("a0=1", feature) for feature in features[1:]}
    unreached = [(one, other) for one in features[1:] for other in features[1:] if one < other]
    chosen = [choose_lean(unreached, reached, number) for number in range(20)]
    assert chosen == [choose_lean(set(unreached), reached, number) for number in range(20)]
    assert len(set(chosen)) > 15
    assert all(2 <= len(lean.features) <= 5 for lean in chosen)
