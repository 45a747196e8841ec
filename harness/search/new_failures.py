"""The failures of judged cases that a slice settles."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from attnfuzz.harness.ledger.entry import Entry, in_all_modes, reason_of
from attnfuzz.harness.sandbox.confirm import alike
from attnfuzz.harness.search.beneath import SHARE, Symptoms, explaining, without
from attnfuzz.harness.search.known import KnownCause, KnownCauses
from attnfuzz.harness.search.messages import Slice, Suspect
from attnfuzz.harness.search.tally import CountingRunner
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.past import past_failures
from attnfuzz.reference.any_case import AnyCase


class NewFailures:
    """Chooses failures that are neither known, nor settled by another job, nor accepted by the `ledger`.

    Others that occur while one is settled are set aside, with their case, verdict and history.
    """

    def __init__(
        self,
        task: Slice,
        causes: KnownCauses,
        runner: CountingRunner,
        allowed: Callable[[Any], bool],
        ledger: Sequence[Entry],
    ) -> None:
        self._task, self._causes, self._runner, self._allowed = task, causes, runner, allowed
        self._ledger = [each for each in ledger if each.is_about(task.backend)]
        self._symptoms = Symptoms(runner.verdict, allowed)
        self._passed_over = set(task.known)
        self._held = {each.claimed for each in task.held}
        self._beside: set[Fingerprint] = set()
        self._laid_bare = 0
        self._aside: dict[Fingerprint, tuple[AnyCase, Verdict, tuple[AnyCase, ...]]] = {}

    def choose(self, case: AnyCase, verdict: Verdict, awaited: Sequence[Observation] = ()) -> Suspect | None:
        """Return the worst new failure of a case, or None. It is not chosen again.

        If it occurs together with a known one, it must have another cause. A failure with a known fingerprint is new if
        no known cause can show in the case. `awaited` failures are suspects that have to be settled.
        """
        if not verdict.failures or self.is_held(case, verdict):
            return None
        worst = Fingerprint.of(case.backend, verdict.failures[0])
        causes = self._causes.showing_as(worst)
        for failure in verdict.failures:
            fingerprint = Fingerprint.of(case.backend, failure)
            wanted = fingerprint == worst or any(alike(failure, each) for each in awaited)
            new = fingerprint not in self._passed_over
            if new and (wanted or not self._symptoms.include(failure, causes, case.backend)):
                self._passed_over.add(fingerprint)
                return Suspect(fingerprint=fingerprint, case=case, observation=failure)
        if worst in self._beside or self._explaining(worst, case) != []:
            return None
        self._beside.add(worst)
        return Suspect(fingerprint=worst, case=case, observation=verdict.failures[0], beside=True)

    def beneath(self, case: AnyCase, verdict: Verdict) -> AnyCase | None:
        """Return the case without the known causes of its worst failure, which may hide another one, or None."""
        if not verdict.failures or self.is_held(case, verdict):
            return None
        worst = Fingerprint.of(case.backend, verdict.failures[0])
        present = self._explaining(worst, case)
        if not present or worst in self._beside or self._laid_bare >= SHARE * self._runner.total.searched:
            return None
        self._laid_bare += 1
        return without(case, present, self._allowed, turn=self._laid_bare)

    def with_past(self, case: AnyCase, explained: Collection[Fingerprint] = ()) -> AnyCase:
        """Return a drawn case that goes on after known failures, and after those `explained` without settling them."""
        known = in_all_modes(self._passed_over.union(explained), case, self._ledger)
        return case.having(past=past_failures(known, case.backend))

    def after_explained(self, case: AnyCase, verdict: Verdict) -> tuple[AnyCase, bool]:
        """Return the case that goes on only after those of its past failures that known causes may explain.

        Also return whether these are all.
        """
        fingerprints = [Fingerprint.of(case.backend, each) for each in verdict.passed]
        explained = [each for each in fingerprints if each in self._beside or self._explaining(each, case) != []]
        return case.having(past=past_failures(explained, case.backend)), len(explained) == len(fingerprints)

    def is_held(self, case: AnyCase, verdict: Verdict) -> bool:
        """Return whether another job is settling a failure of the case, whose others may have the same cause."""
        return not self._held.isdisjoint(Fingerprint.of(case.backend, each).claimed for each in verdict.failures)

    def is_unsettled(self, case: AnyCase, verdict: Verdict) -> bool:
        """Return whether the worst failure of a case is neither known nor being settled by another job."""
        worst = Fingerprint.of(case.backend, verdict.failures[0])
        return worst not in self._passed_over and not self.is_held(case, verdict)

    def leave(self, suspect: Suspect) -> None:
        """Leave a chosen failure to the job that is settling it."""
        self._held.add(suspect.fingerprint.claimed)
        (self._beside if suspect.beside else self._passed_over).discard(suspect.fingerprint)

    def is_known(self, fingerprint: Fingerprint) -> bool:
        """Return whether failures with this fingerprint are known or were chosen before."""
        return fingerprint in self._passed_over

    def is_beside(self, fingerprint: Fingerprint) -> bool:
        """Return whether a failure with this fingerprint was chosen beside known ones that have it too."""
        return fingerprint in self._beside

    def accepts(self, fingerprint: Fingerprint, case: AnyCase) -> bool:
        """Return whether the ledger accepts a failure."""
        return reason_of(self._ledger, fingerprint, case) is not None

    def set_aside(self, case: AnyCase, verdict: Verdict) -> None:
        """Keep a verdict on a case that was run to settle another failure, if its worst failure is new."""
        if verdict.failures and not self._task.first_only and not self.is_held(case, verdict):
            fingerprint = Fingerprint.of(case.backend, verdict.failures[0])
            if fingerprint not in self._passed_over:
                self._aside.setdefault(fingerprint, (case, verdict, self._runner.history))

    def next_aside(self) -> tuple[AnyCase, Verdict, tuple[AnyCase, ...]] | None:
        """Return the first case that was set aside, which is forgotten, or None."""
        return self._aside.pop(next(iter(self._aside))) if self._aside else None

    def _explaining(self, fingerprint: Fingerprint, case: AnyCase) -> Sequence[KnownCause] | None:
        return explaining(self._causes.showing_as(fingerprint), case, fingerprint, self.accepts)
