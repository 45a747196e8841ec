"""Repeating a case, to determine whether its failure is deterministic, a race, or depends on the process."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attnfuzz.harness.sandbox.case_runner import CaseRunner
from attnfuzz.harness.triage.result import Repetition, Variant, VariantOutcome
from attnfuzz.harness.verdict.failures import DEATHS, FAULTS, Kind, Verdict
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase

REPEATS = 5
"""Number of runs in fresh workers, and again in one worker: ten runs miss a failure rate of 30% in 3% of cases."""

AFTER_A_HANG = 2
"""Number of runs of a hanging case: each takes the whole timeout."""


class Tried(CaseRunner[Any], Protocol):
    """The runner for triage: `attnfuzz.harness.sandbox.check.Runner`."""

    def trace(self, case: AnyCase) -> tuple[Verdict, CallCase | None]:
        """Run a case made of steps, and return the calls of its last step."""
        ...


@dataclass(frozen=True)
class Repeated:
    """Runs of one case: the first of each worker, and repeated ones in the same worker."""

    fresh: tuple[Verdict, ...]
    used: tuple[Verdict, ...]

    @property
    def failing(self) -> Verdict | None:
        """The first failing verdict."""
        return next((verdict for verdict in (*self.fresh, *self.used) if verdict.failures), None)

    @property
    def outcome(self) -> VariantOutcome:
        """The outcome of all runs."""
        return VariantOutcome.of(*self.fresh, *self.used)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants in fresh workers, and in one."""
        fresh = Variant(what="as given", value="in fresh processes", outcome=VariantOutcome.of(*self.fresh))
        used = Variant(what="as given", value="again in one process", outcome=VariantOutcome.of(*self.used))
        return (fresh, used) if self.used else (fresh,)

    @property
    def repetition(self) -> Repetition:
        """The conclusion from differences between the runs."""
        if len(self.fresh) < 2:
            return Repetition.UNKNOWN
        groups = [{_seen(verdict) for verdict in group} for group in (self.fresh, self.used) if group]
        says_so = self.failing is not None and _shows(self.failing, {Kind.NONDETERMINISTIC})
        if says_so or any(len(group) > 1 for group in groups):
            return Repetition.RACING
        return Repetition.DETERMINISTIC if len(set.union(*groups)) == 1 else Repetition.HISTORY


def repeated(case: AnyCase, runner: Tried, repeats: int = REPEATS) -> Repeated:
    """Run a case `repeats` times in fresh workers, and as often in one that has run it, if it survives."""
    first = _fresh(case, runner)
    if _shows(first, {Kind.HANG}):
        repeats = min(repeats, AFTER_A_HANG)
    fresh = [first] + [_fresh(case, runner) for _ in range(repeats - 1)]
    if _shows(fresh[-1], DEATHS) or first.unsupported is not None:
        return Repeated(tuple(fresh), ())
    # The last of the fresh workers has run the case once, and runs it again.
    return Repeated(tuple(fresh), tuple(runner.verdict(case) for _ in range(repeats)))


def tried(case: AnyCase, runner: Tried, tries: int) -> list[Verdict]:
    """Run a case `tries` times; several runs are each in a fresh worker, for independent chances of a race."""
    return [runner.verdict(case)] if tries == 1 else [_fresh(case, runner) for _ in range(tries)]


def _fresh(case: AnyCase, runner: Tried) -> Verdict:
    runner.renew()
    return runner.verdict(case)


def _shows(verdict: Verdict, kinds: Collection[Kind]) -> bool:
    return any(failure.kind in kinds for failure in verdict.failures)


def _seen(verdict: Verdict) -> tuple[Sequence[object], ...]:
    """Return the part of a verdict that is the same in every run of deterministic code on the same bits.

    For a fault only its kind and kernel: which of several threads faults first is chance.
    """
    return tuple(
        (failure.kind, failure.kernel) if failure.kind in FAULTS else (failure.kind, failure.place, failure.message)
        for failure in verdict.failures
    )
