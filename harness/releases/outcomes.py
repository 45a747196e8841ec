"""The outcome of each version, and the versions in which a fault began and ended."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise
from typing import TypeVar

import msgspec

V = TypeVar("V", bound=Hashable)

STILL_THERE = "still there"
NEVER = "-"


class Ending(StrEnum):
    """How a script or a case ended with a version; a different failure may hide the known one."""

    PASSES = "passes"
    FAILS = "fails"
    FAILS_OTHERWISE = "fails otherwise"
    CANNOT_RUN = "can't run"
    CANNOT_BE_HAD = "can't be had"


class Outcome(msgspec.Struct, frozen=True):
    """`line` is the failure seen, or the reason why it could not be run or installed; empty if it passes."""

    ending: Ending
    line: str = ""

    @property
    def judged(self) -> bool:
        """Whether it says anything about the fault."""
        return self.ending in {Ending.PASSES, Ending.FAILS}


@dataclass(frozen=True)
class Course:
    """When a failure began and ended; both "-" if no release fails.

    `began` is the first release that fails, after "by" if it is the oldest that could be judged. `ended` is the first
    that passes after all that fail, or "still there".
    """

    began: str
    ended: str

    @property
    def still_there(self) -> bool:
        """Whether the newest release that could be judged fails."""
        return self.ended == STILL_THERE


def course_of(outcomes: Mapping[str, Outcome]) -> Course:
    """Derive the course of a failure from its outcomes in the order of releases."""
    runs = _runs(outcomes)
    failing = [place for place, (ending, _) in enumerate(runs) if ending is Ending.FAILS]
    if not failing:
        return Course(NEVER, NEVER)
    began = runs[failing[0]][1][0]
    after = runs[failing[-1] + 1 :]
    return Course(began=began if failing[0] else f"by {began}", ended=after[0][1][0] if after else STILL_THERE)


def _runs(outcomes: Mapping[V, Outcome]) -> list[tuple[Ending, list[V]]]:
    """Return the versions that could be judged, in runs that end alike."""
    judged = [(version, outcome.ending) for version, outcome in outcomes.items() if outcome.judged]
    return [(ending, [version for version, _ in group]) for ending, group in groupby(judged, key=lambda each: each[1])]


def in_words(outcomes: Mapping[V, Outcome]) -> str:
    """Describe `outcomes`, in the order of versions, in a sentence."""
    runs = _runs(outcomes)
    if not runs:
        return "No version could be run."
    failing = [versions for ending, versions in runs if ending is Ending.FAILS]
    if not failing:
        passing = runs[0][1]
        rest = "; no other could be run" if len(passing) < len(outcomes) else ""
        return f"No version fails: {_listed(passing)} {'passes' if len(passing) == 1 else 'pass'}{rest}."
    if len(failing) > 1:
        return f"Flaky: {', '.join(f'{ending} in {_listed(versions)}' for ending, versions in runs)}."
    changes = {after[0]: (after[1][0], before[1][-1]) for before, after in pairwise(runs)}
    clauses = []
    if Ending.FAILS in changes:
        first, before = changes[Ending.FAILS]
        clauses.append(f"first fails in {first} ({before} passes{_unjudged(outcomes, before, first)})")
    else:
        clauses.append(f"fails in {failing[0][0]} already, the oldest that could be run")
    if Ending.PASSES in changes:
        first, before = changes[Ending.PASSES]
        clauses.append(f"fixed in {first} ({before} fails{_unjudged(outcomes, before, first)})")
    else:
        clauses.append(f"not fixed in {failing[0][-1]}, the newest that could be run")
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _unjudged(outcomes: Mapping[V, Outcome], before: V, first: V) -> str:
    """Name the versions between two that could not be judged: the change may be there."""
    versions = list(outcomes)
    between = versions[versions.index(before) + 1 : versions.index(first)]
    return f"; {_listed(between)} could not be judged" if between else ""


def _listed(versions: Sequence[object]) -> str:
    return ", ".join(map(str, versions))
