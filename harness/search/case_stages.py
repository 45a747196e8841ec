"""The five stages for a failing case: it is confirmed, attributed, reduced, confirmed again and described."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from msgspec.structs import replace

from attnfuzz.harness.sandbox.confirm import STATISTICAL, by_chance, comes_back
from attnfuzz.harness.sandbox.pursuit import Effort, Pursued, Pursuit
from attnfuzz.harness.search.folded import folded
from attnfuzz.harness.search.known import KnownCause, KnownCauses
from attnfuzz.harness.search.messages import AnyMessage, Caught, Lost, ShrinkBudget
from attnfuzz.harness.search.misread import known_misreading
from attnfuzz.harness.search.naming import finding_name
from attnfuzz.harness.search.needs import needs_late, needs_of
from attnfuzz.harness.search.new_failures import NewFailures
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.predictions import ATTRIBUTION, Allowed, attribute_case
from attnfuzz.harness.search.slice_time import SliceTime
from attnfuzz.harness.search.smallest import smallest
from attnfuzz.harness.search.tally import CountingRunner
from attnfuzz.harness.search.variants import steadier, unaccepted
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.device import Device
from attnfuzz.reference.features.row import Feature

SYMPTOM = ShrinkBudget(runs=150, seconds=3.0)
"""Budget for shrinking a failure that a known cause explains."""

RUNS_PER_SHRINKING_RUN = 4
"""Number of runs of a flaky failure's case per run of the shrinking budget."""


_SECONDS_TO_FOLD = 2.0
"""Time after which no further case of two steps is tried for a failure that depends on earlier cases."""


@dataclass(frozen=True)
class Surroundings:
    """The parts of a slice that its stages share.

    `allowed` cases are those that their backend supports, `in_words` adds explanations to a verdict, `minimized` names
    the cause whose case is minimized. `stateful` are the backends with a failure that depends on earlier cases: state
    that they keep would make other variants of a case fail too.
    """

    runner: CountingRunner
    tell: Callable[[AnyMessage], None]
    capability: Capability | None
    allowed: Allowed
    in_words: Callable[[Any, Verdict], Verdict]
    time: SliceTime
    causes: KnownCauses
    failures: NewFailures
    minimized: str = ""
    stateful: set[str] = field(default_factory=set)


class CaseStages:
    """The stages of a slice. A failure that turns out to be flaky, or does not come back, is sent as that."""

    def __init__(self, slice_: Surroundings) -> None:
        self._slice = slice_

    def pin(
        self, fingerprint: Fingerprint, case: AnyCase, verdict: Verdict, history: tuple[AnyCase, ...] = ()
    ) -> Pinned[Any]:
        """Return a failure of a case that ran after those of `history`."""
        runner = self._slice.runner
        return Pinned(
            fingerprint,
            case,
            verdict,
            run=self._alone if case.backend in self._slice.stateful else runner.verdict,
            budget=self._slice.time.budget,
            aside=self._slice.failures.set_aside,
            slowest=runner.hang_seconds if fingerprint.kind is Kind.HANG else 0.0,
            history=history,
        )

    def confirm(self, suspected: Pinned[Any]) -> Pinned[Any] | None:
        """Run the case in a fresh worker. One that does not fail again runs under other conditions too.

        A failure after earlier cases is rather shown by a case of two steps, which can be minimized.
        """
        self._slice.runner.shrinking = True
        if self._comes_back(suspected):
            return self._again(suspected, suspected.case)
        if (within := self._within_a_case(suspected)) is not None:
            return within
        pursued = self._pursuit(suspected).outcome()
        self._slice.runner.shrinking = False
        self._tell_pursued(suspected, pursued)
        return None

    def attribute(self, failing: Pinned[Any]) -> tuple[KnownCause | None, Pinned[Any]]:
        """Find the known cause, in a case that the ledger does not accept and with values that show the failure often.

        A symptom goes on with its cause's marks alone, and gets a smaller budget.
        """
        failing = self._steadier(self._unaccepted(failing))
        if failing.spent:
            cause = self._as_it_is(failing)
            failing.limit(self._slice.time.budget)
        else:
            cause, case = attribute_case(failing, self._slice.causes, self._slice.allowed)
            failing = self._at(failing, case)
        if cause is not None:
            failing.limit(replace(SYMPTOM, seconds=min(SYMPTOM.seconds, self._slice.time.budget.seconds)))
        return cause, failing

    def reduce(self, failing: Pinned[Any], cause: KnownCause | None) -> Pinned[Any]:
        """Minimize the case. It keeps the features that its cause needs, and gets no new ones."""
        others = self._slice.causes.showing_as(failing.fingerprint)
        small, clues = smallest(
            failing,
            cause,
            self._slice.allowed,
            capability=self._slice.capability,
            runs=self._slice.time.budget.runs,
            # It might turn into a case of another cause that shows in the same way.
            plainly=all(each.name == self._slice.minimized for each in others),
        )
        return failing.reduced_to(small, clues)

    def confirm_again(self, failing: Pinned[Any], smallest: Pinned[Any]) -> Pinned[Any] | None:
        """Run the smallest case in a fresh worker, and a few times more. A failure that comes and goes has a rate."""
        if smallest.case == failing.case or not self._comes_back(smallest):
            # The first case came back before.
            self._slice.runner.renew()
            smallest = smallest.reduced_to(failing.case, smallest.clues)
        pursuit = self._pursuit(smallest, came_back=True)
        if pursuit.is_steady():
            return smallest
        self._tell_pursued(smallest, pursuit.outcome())
        return None

    def describe(self, failing: Pinned[Any], cause: KnownCause | None) -> Caught:
        """Find all needs of the smallest case, its cause if none was known for the larger one, and its words."""
        case, clues, fingerprint, time = failing.case, failing.clues, failing.fingerprint, self._slice.time
        if cause is None and case != failing.first:
            # A larger case may fail in several ways.
            small = self.pin(fingerprint, case, failing.verdict(case))
            cause = self._as_it_is(small, clues)
        needs = needs_of(failing, case, self._slice.allowed, clues=clues if cause is None else clues | cause.clues)
        ablated = not failing.spent
        observation, verdict = failing.failure, failing.verdict(case)
        if time.budget.seconds > 0:
            verdict = self._slice.in_words(case, verdict)
            observation = fingerprint.among(verdict.failures) or observation
        beside = self._slice.failures.is_beside(fingerprint)
        found = KnownCause(
            name=finding_name(case, observation, apart=needs if beside else None),
            case=case,
            fingerprint=fingerprint,
            needs=needs,
            ablated=ablated,
            exceptions=frozenset(filter(None, (observation.exception,))),
        )
        if cause is None and time.budget.seconds > 0:
            cause = known_misreading(found, self._slice.causes, self._slice.runner.verdict, self._slice.allowed)
        return Caught(
            fingerprint=fingerprint,
            first=failing.first,
            case=case,
            observation=observation,
            verdict=verdict,
            needs=needs,
            ablated=ablated,
            cause=self._slice.causes.add(found, cause=cause),
            beside=beside,
        )

    def _alone(self, case: AnyCase) -> Verdict:
        """Return the verdict of a worker that has run no other case."""
        self._slice.runner.renew()
        return self._slice.runner.verdict(case)

    def _comes_back(self, failing: Pinned[Any]) -> bool:
        return comes_back(self._slice.runner, failing.case, failing.failure)

    def _again(self, failing: Pinned[Any], case: AnyCase) -> Pinned[Any]:
        """Return the failure pinned to one of its cases, with a new budget."""
        return self.pin(failing.fingerprint, case, failing.verdict(case), failing.history)

    def _within_a_case(self, failing: Pinned[Any]) -> Pinned[Any] | None:
        """Return the failure in a case of two steps, alone in a fresh worker, or None. Workers have to start fast."""
        if not failing.history or not self._starts_fast or failing.spent:
            return None
        began = monotonic()
        for case in filter(self._slice.allowed, folded(failing.case, failing.failure.step)):
            if monotonic() - began > _SECONDS_TO_FOLD:
                # Workers that import an engine start slowly.
                break
            verdict = self._alone(case)
            found = failing.fingerprint.among(verdict.failures)
            if found is not None and found.step and comes_back(self._slice.runner, case, found):
                self._slice.stateful.add(case.backend)
                return self.pin(failing.fingerprint, case, verdict)
        return None

    def _at(self, failing: Pinned[Any], case: AnyCase) -> Pinned[Any]:
        """Return the failure with another case that fails alike, or as it is if it does not come back there."""
        if case == failing.case:
            return failing
        observation = failing.observation(case)
        back = observation is not None and comes_back(self._slice.runner, case, observation)
        return self._again(failing, case) if back else failing

    def _unaccepted(self, failing: Pinned[Any]) -> Pinned[Any]:
        """Return the failure in a case in which the ledger does not accept it, if it occurs in one."""
        accepts = self._slice.failures.accepts
        if failing.spent or not accepts(failing.fingerprint, failing.case):
            return failing
        case = unaccepted(failing, self._slice.allowed, lambda each: accepts(failing.fingerprint, each))
        return failing if case is None else self._at(failing, case)

    def _steadier(self, failing: Pinned[Any]) -> Pinned[Any]:
        """Return the failure with values that show it more often, if it is a wrong number and such values exist."""
        if failing.fingerprint.kind not in STATISTICAL or failing.spent:
            return failing
        return self._at(failing, steadier(failing, self._slice.allowed))

    def _as_it_is(self, failing: Pinned[Any], clues: frozenset[Feature] = frozenset()) -> KnownCause | None:
        """Return the cause that explains a failure, within a separate budget. A failure beneath it is ignored."""
        failing.limit(self._slice.time.within(ATTRIBUTION))
        cause, _ = attribute_case(failing, self._slice.causes, self._slice.allowed, needed=clues, share=1)
        return cause

    def _pursuit(self, failing: Pinned[Any], *, came_back: bool = False) -> Pursuit:
        capability, budget = self._slice.capability, self._slice.time.budget
        return Pursuit(
            self._slice.runner,
            failing.case,
            failing.failure,
            failing.history,
            Effort(RUNS_PER_SHRINKING_RUN * budget.runs, budget.seconds),
            late=capability is not None and capability.device is Device.CUDA,
            came_back=came_back,
        )

    @property
    def _starts_fast(self) -> bool:
        """Whether a new worker takes milliseconds. On a GPU it takes seconds."""
        return self._slice.capability is not None and self._slice.capability.device is Device.CPU

    def _tell_pursued(self, failing: Pinned[Any], pursued: Pursued) -> None:
        fingerprint = failing.fingerprint
        if not pursued.is_finding:
            self._slice.tell(Lost(fingerprint=fingerprint, tried=pursued.recurrence))
            return
        if pursued.recurrence.depends_on_earlier_cases and self._starts_fast:
            self._slice.stateful.add(pursued.case.backend)
        cause = ""
        if needs := needs_late(pursued, self._slice.runner.verdict):
            pinned = self.pin(fingerprint, pursued.case, pursued.verdict)
            known, _ = attribute_case(pinned, self._slice.causes, self._slice.allowed)
            name = finding_name(pursued.case, pursued.observation)
            race = KnownCause(name=name, case=pursued.case, fingerprint=fingerprint, needs=needs)
            cause = self._slice.causes.add(race, cause=known)
        self._slice.tell(
            Caught(
                fingerprint=fingerprint,
                first=failing.first,
                case=pursued.case,
                observation=pursued.observation,
                verdict=pursued.verdict,
                recurrence=pursued.recurrence,
                history=pursued.history,
                needs=needs,
                # Wrong numbers depend on values, and each variant passes with most values.
                ablated=bool(needs) or not by_chance(pursued.observation),
                cause=cause,
                beside=self._slice.failures.is_beside(fingerprint),
            )
        )
