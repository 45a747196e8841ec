"""Deciding whether a failure comes back: before it is filed, and on later nights."""

from collections.abc import Iterator
from typing import Any

from attnfuzz.harness.sandbox.case_runner import CaseRunner
from attnfuzz.harness.verdict.failures import FAULTS, Kind, Observation, Verdict
from attnfuzz.reference.any_case import AnyCase

STATISTICAL = frozenset({Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH})
"""Kinds that chance can produce, with the probability `alpha` of the judge."""

BEYOND_CHANCE = 4.0
"""The margin above which chance produces no error: its probability is below alpha^4 in each tier. A bug may still be
visible with few seeds, for instance if values are discrete.
"""

FRESH_SEEDS = 3
"""Number of value seeds for rerunning a statistical failure."""


def comes_back(runner: CaseRunner[Any], case: AnyCase, observation: Observation) -> bool:
    """Return whether a failure comes back in a fresh worker: one of its kind, and in its place unless that is chance.

    Exact failures are run with the same seed. Those that chance can produce are run with fresh seeds, since the same
    one would only repeat a false positive; one failure is enough. A hang needs no run alone: a runner runs one case at
    a time.
    """
    runner.renew()
    cases = _with_fresh_seeds(case) if by_chance(observation) else iter((case,))
    return any(alike(again, observation) for fresh in cases for again in runner.verdict(fresh).observations)


def by_chance(observation: Observation) -> bool:
    """Return whether chance can produce a failure: a wrong number near its bound."""
    margin = observation.margin
    return observation.kind in STATISTICAL and (margin is None or margin < BEYOND_CHANCE)


def recheck(runner: CaseRunner[Any], case: AnyCase) -> tuple[int, Verdict]:
    """Run an old finding's case in a fresh worker, with fresh seeds too, until it fails in any way.

    Returns the number of runs and the last verdict, which is a failure if there was one.
    """
    runner.renew()
    runs, verdict = 1, runner.verdict(case)
    for fresh in _with_fresh_seeds(case):
        if verdict.failures or verdict.unsupported is not None:
            break
        runs, verdict = runs + 1, runner.verdict(fresh)
    return runs, verdict


def _with_fresh_seeds(case: AnyCase) -> Iterator[AnyCase]:
    return map(case.reseeded, range(1, FRESH_SEEDS + 1))


def alike(again: Observation, first: Observation) -> bool:
    """Return whether two failures are alike: of the same kind, and in the same place unless that is chance."""
    same = again.kind is first.kind and again.gap is first.gap
    return same and (again.place == first.place or first.kind in FAULTS)
