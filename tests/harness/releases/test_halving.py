"""Which versions are run, and how few."""

from collections.abc import Callable
from itertools import product

import pytest
from packaging.version import Version

from attnfuzz.harness.releases.halving import search
from attnfuzz.harness.releases.outcomes import Ending, Outcome

VERSIONS = [Version(f"0.6.{number}") for number in range(16)]

Run = Callable[[Version], Outcome]


def outcomes(letters: str, ran: list[Version] | None = None) -> Run:
    """Outcomes in order: p passes, F fails, x can't be run, - can't be had. `ran` gets the versions that are run."""
    endings = {"p": Ending.PASSES, "F": Ending.FAILS, "x": Ending.CANNOT_RUN, "-": Ending.CANNOT_BE_HAD}

    def run(version: Version) -> Outcome:
        if ran is not None:
            ran.append(version)
        return Outcome(endings[letters[version.micro]])

    return run


@pytest.mark.parametrize("first", range(1, 16))
def test_the_first_version_that_fails_is_found_in_a_few_runs(first: int) -> None:
    letters = "p" * first + "F" * (16 - first)
    ran: list[Version] = []
    found = search(VERSIONS, outcomes(letters, ran))
    assert {VERSIONS[first - 1], VERSIONS[first]} <= found.keys()
    assert len(ran) == len(set(ran)) <= 6


def test_the_first_version_that_is_fixed_is_found_too() -> None:
    found = search(VERSIONS, outcomes("FFFFFFFFFFFppppp"))
    assert {VERSIONS[10], VERSIONS[11]} <= found.keys()


def test_outcomes_are_in_the_order_of_versions() -> None:
    found = search(VERSIONS, outcomes("pppFFFFFFFFFFFFF"))
    assert list(found) == sorted(found)


@pytest.mark.parametrize("letters", ["pppppppFFppppppp", "FFFFFFFpFFFFFFFF", "pppppppppppppppp"])
def test_where_the_ends_agree_all_are_run(letters: str) -> None:
    assert list(search(VERSIONS, outcomes(letters))) == VERSIONS


def test_all_are_run_once_if_that_is_asked_for() -> None:
    ran: list[Version] = []
    assert list(search(VERSIONS, outcomes("ppppFFFFFFFFFFFF", ran), every=True)) == VERSIONS
    assert ran == VERSIONS


def test_ends_that_can_not_be_run_are_passed_over() -> None:
    found = search(VERSIONS, outcomes("x-pppppFFFFFFF-x"))
    assert {VERSIONS[6], VERSIONS[7]} <= found.keys()
    assert len(found) < 16


def test_nothing_is_run_twice_where_nothing_can_be_run() -> None:
    ran: list[Version] = []
    search(VERSIONS, outcomes("x" * 16, ran))
    assert ran == VERSIONS


def test_neighbours_are_tried_where_one_can_not_be_run() -> None:
    """All ways in which 6 versions pass, fail or can't be run, with one change: nothing untried is left around it."""
    for letters in map("".join, product("pFx", repeat=6)):
        judged = letters.replace("x", "")
        if not judged or judged != "p" * judged.count("p") + "F" * judged.count("F"):
            continue
        found = search(VERSIONS[:6], outcomes(letters))
        passing, failing = judged.count("p"), judged.count("F")
        if not (passing and failing):
            assert len(found) == 6
            continue
        last, first = letters.rindex("p"), letters.index("F")
        assert set(VERSIONS[last : first + 1]) <= found.keys()


def test_a_single_version_is_run() -> None:
    assert search(VERSIONS[:1], outcomes("F")) == {VERSIONS[0]: Outcome(Ending.FAILS)}
