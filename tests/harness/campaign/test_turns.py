"""Whose turn it is: shares follow yield, with a floor."""

from collections import Counter

import pytest

from attnfuzz.harness.campaign.turns import FLOOR, Turns


def time_used(turns: Turns, seconds: dict[str, float], gains: dict[str, float], slices: int = 400) -> Counter[str]:
    """The time that each name got if its slices take so long, and yield so much."""
    used: Counter[str] = Counter()
    for _ in range(slices):
        name = turns.next(seconds)
        assert name is not None
        turns.spent(name, seconds[name], gain=gains[name])
        used[name] += seconds[name]  # type: ignore[assignment]
    return used


def test_those_that_yield_alike_take_turns() -> None:
    turns = Turns("abc")
    order = []
    for _ in range(6):
        order.append(turns.next("abc"))
        turns.spent(order[-1] or "", 1.0, gain=0.0)
    assert order == list("abcabc")


def test_time_is_shared_and_not_slices() -> None:
    used = time_used(Turns("ab"), {"a": 1.0, "b": 4.0}, {"a": 0.0, "b": 0.0})
    assert used["a"] / used["b"] == pytest.approx(1.0, rel=0.05)


def test_a_backend_without_gain_gets_the_minimum_share_of_time() -> None:
    used = time_used(Turns("ab"), {"a": 1.0, "b": 1.0}, {"a": 9.0, "b": 0.0})
    assert used["b"] / used.total() == pytest.approx(FLOOR / 2, rel=0.05)


def test_a_yield_that_is_over_is_forgotten() -> None:
    turns = Turns("ab")
    time_used(turns, {"a": 1.0, "b": 1.0}, {"a": 9.0, "b": 0.0}, slices=40)
    used = time_used(turns, {"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 0.0})
    assert used["a"] / used["b"] == pytest.approx(1.0, rel=0.1)


def test_a_running_slice_counts_as_a_turn() -> None:
    assert Turns("ab").next("ab", under_way=[("a", 0.0)]) == "b"


def test_a_slice_that_takes_long_counts_for_as_long_as_it_has_taken() -> None:
    turns = Turns("ab")
    turns.spent("b", 5.0, gain=0.0)
    assert turns.next("ab", under_way=[("a", 3.0)]) == "a"
    assert turns.next("ab", under_way=[("a", 60.0)]) == "b"


def test_a_first_slice_is_expected_to_take_as_long_as_those_of_others() -> None:
    turns = Turns("abc")
    turns.spent("a", 6.0, gain=0.0)
    turns.spent("b", 8.0, gain=0.0)
    assert turns.next("abc") == "c"
    assert turns.next("abc", under_way=[("c", 0.0)]) == "a", "not all at once to the one that had no turn"


def test_a_backend_without_a_turn_is_assumed_to_gain_the_average() -> None:
    turns = Turns("abcd")
    turns.spent("a", 1.0, gain=30.0)
    turns.spent("b", 1.0, gain=10.0)
    shares = turns.shares()
    assert shares["a"] > shares["c"] == shares["d"] > shares["b"]


def test_time_is_owed_while_a_backend_is_below_the_minimum_share() -> None:
    turns = Turns("ab")
    assert not turns.short()
    turns.spent("a", 30.0, gain=0.0)
    assert turns.short()
    assert not turns.short([("b", 20.0)]), "what it has now counts"
    turns.spent("b", 20.0, gain=0.0)
    assert not turns.short()


def test_only_ready_backends_get_a_turn() -> None:
    turns = Turns("ab")
    assert turns.next("b") == "b"
    assert turns.next("") is None
