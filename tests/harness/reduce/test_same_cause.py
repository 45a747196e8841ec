"""A smaller case has the cause of the first one, and not its symptom alone."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.reduce import SameCause, reduce
from attnfuzz.harness.reduce.ablation import CLUES, FEATURES, needed, unusual_in
from attnfuzz.reference.case import Case, Launch, Mode, Unused
from attnfuzz.reference.geometry import Geometry

WINDOWED = Case(
    backend="any",
    geometry=replace(HEADS, window_left=3, sinks=True),
    steps=(step(Mode.EXTEND, (3, 40), (5, 9)),),
    seed=10,
)


def longest(case: Case) -> int:
    return max(case.slot_lengths().values(), default=0)


def cuts_keys_off(case: Case) -> bool:
    return 0 <= case.geometry.window_left < longest(case) - 1


def smallest(
    fails: Callable[[Case], bool], *, by_chance: bool = False, stop: Callable[[], bool] = lambda: False
) -> Case:
    return cause_of(WINDOWED, fails, by_chance=by_chance).smallest(stop=stop)


def cause_of(case: Case, fails: Callable[[Case], bool], *, by_chance: bool = False) -> SameCause[Case]:
    return SameCause(case, needed(case, fails, among=CLUES), fails, by_chance=by_chance)


def window_or_little(case: Case) -> bool:
    """Two bugs with one symptom: a window that cuts keys off, and cases of one key."""
    return cuts_keys_off(case) or longest(case) <= 1


def test_shrinking_does_not_slide_into_another_bug_of_the_same_symptom() -> None:
    assert not cuts_keys_off(reduce(WINDOWED, window_or_little))
    small = smallest(window_or_little)
    assert cuts_keys_off(small)
    assert longest(small) <= 3
    assert not small.geometry.sinks


def test_shrinking_keeps_a_need_of_nan_in_memory_at_few_runs() -> None:
    with_numbers = []

    def nan_behind(case: Case) -> bool:
        numbers = case.pages.behind is Unused.NUMBERS
        with_numbers.append(numbers)
        return not numbers

    assert smallest(nan_behind).pages.behind is Unused.NAN
    assert len(with_numbers) > 3 * sum(with_numbers)
    assert longest(smallest(lambda case: nan_behind(case) or longest(case) <= 1)) > 1


def test_a_needed_window_stays_shorter_than_the_keys() -> None:
    def windowed(case: Case) -> bool:
        return 0 <= case.geometry.window_left < longest(case)

    assert reduce(WINDOWED, windowed).geometry.window_left == 0
    assert smallest(windowed).geometry.window_left > 0


def test_a_feature_that_the_failure_does_not_need_goes() -> None:
    small = smallest(lambda _: True)
    assert small.geometry == Geometry(q_heads=1, kv_heads=1, head_dim_qk=16, head_dim_vo=16, page_size=1)


def test_a_smaller_case_has_no_clue_that_the_first_one_lacks() -> None:
    def several_queries(case: Case) -> bool:
        return any(request.q_len > 1 for step in case.steps for request in step.requests)

    def clues(case: Case) -> set[str]:
        return {each.name for each in unusual_in(case)}

    assert "empty KV" in clues(reduce(WINDOWED, several_queries))
    assert not clues(smallest(several_queries))


def test_a_clue_that_is_not_needed_goes_even_if_the_case_grows() -> None:
    first = replace(WINDOWED, geometry=replace(WINDOWED.geometry, head_dim_qk=8, head_dim_vo=8))
    assert cause_of(first, cuts_keys_off).smallest().geometry.head_dim_qk == 16


def test_a_case_that_fails_without_the_feature_has_another_cause() -> None:
    cause = SameCause(WINDOWED, frozenset({FEATURES["sinks"]}), window_or_little)
    assert not cause.shows_in(WINDOWED)
    assert SameCause(WINDOWED, frozenset({FEATURES["sinks"]}), lambda case: case.geometry.sinks).shows_in(WINDOWED)


def lucky(seeds: range) -> Callable[[Case], bool]:
    """Small cases fail with some seeds only."""
    return lambda case: longest(case) > 20 or case.seed in seeds


def test_where_chance_fails_a_smaller_case_fails_with_fresh_values_too() -> None:
    assert longest(smallest(lucky(range(1)))) == 1
    assert longest(smallest(lucky(range(1)), by_chance=True)) == 21
    assert longest(smallest(lucky(range(100)), by_chance=True)) == 1


def test_a_check_that_was_cut_short_has_shown_nothing() -> None:
    runs = iter(range(1000))
    left = [True] * 12

    def fails(case: Case) -> bool:
        next(runs)
        if left:
            left.pop()
        return cuts_keys_off(case)

    assert cuts_keys_off(smallest(fails, stop=lambda: not left))


def test_two_graphs_of_one_size_shrink_together() -> None:
    captures = [
        step(mode, stride=2, rows=16, launch=Launch.CAPTURE) for mode in (Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND)
    ]
    replays = [step(each.mode, (2, 9), stride=2, rows=16, launch=Launch.REPLAY) for each in captures]
    case = Case(backend="any", geometry=HEADS, steps=(*captures, *replays))

    def alike(case: Case) -> bool:
        replayed = [each for each in case.steps if each.launch is Launch.REPLAY]
        return len(replayed) == 2 and len({each.padded_tokens for each in replayed}) == 1

    assert {each.padded_batch for each in reduce(case, alike).steps} == {1}


@pytest.mark.parametrize("dim", [256, 80])
def test_a_large_head_dim_becomes_one_vector(dim: int) -> None:
    first = replace(WINDOWED, geometry=replace(WINDOWED.geometry, head_dim_qk=dim, head_dim_vo=dim))
    assert cause_of(first, cuts_keys_off).smallest().geometry.head_dim_qk == 16
