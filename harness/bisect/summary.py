"""What the outcomes of versions say together: where a fault began and where it ended."""

from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import TypeVar

from attnfuzz.harness.bisect.outcome import Ending, Outcome

V = TypeVar("V", bound=Hashable)


def in_words(outcomes: Mapping[V, Outcome]) -> str:
    """A sentence about `outcomes`, which are in the order of their versions."""
    judged = [(version, outcome.ending) for version, outcome in outcomes.items() if outcome.judged]
    if not judged:
        return "No version could be run."
    runs = [(ending, [version for version, _ in group]) for ending, group in groupby(judged, key=lambda each: each[1])]
    failing = [versions for ending, versions in runs if ending is Ending.FAILS]
    if not failing:
        passing = runs[0][1]
        rest = "; no other could be run" if len(passing) < len(outcomes) else ""
        return f"No version fails: {_listed(passing)} {'passes' if len(passing) == 1 else 'pass'}{rest}."
    if len(failing) > 1:
        return f"It comes and goes: {', '.join(f'{ending} in {_listed(versions)}' for ending, versions in runs)}."
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
    """What is not known about the versions between two: the change may be there."""
    versions = list(outcomes)
    between = versions[versions.index(before) + 1 : versions.index(first)]
    return f"; of {_listed(between)} nothing is known" if between else ""


def _listed(versions: Sequence[object]) -> str:
    return ", ".join(map(str, versions))
