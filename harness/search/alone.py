"""Running the related run of a case by itself: if it fails, the failure does not need the first run."""

from collections.abc import Callable

from attnfuzz.harness.reduce.possible import possible
from attnfuzz.harness.reduce.relation import run_only_the_other
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case

RELATIVE = frozenset({Kind.METAMORPHIC_MISMATCH, Kind.REPLAY_DIVERGED, Kind.NONDETERMINISTIC})
"""Kinds of failures that compare two runs."""


def failing_alone(
    case: Case, verdict: Verdict, allowed: Callable[[Case], bool], run: Callable[[Case], Verdict]
) -> tuple[Case, Verdict] | None:
    """Return the related run as a separate case with its verdict, if it fails alone, else None.

    None if the worst failure belongs to the first run: it neither compares two runs nor occurred in the second.
    """
    if not verdict.failures or not (verdict.failures[0].kind in RELATIVE or verdict.failures[0].related):
        return None
    for other in run_only_the_other(case):
        if possible(other) and allowed(other) and (judged := run(other)).failures:
            return other, judged
    return None
