"""One slice of the search: draw cases until one fails in a new way, then shrink and confirm it."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.ledger.entry import Entry, in_all_modes, reason_of
from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.sandbox.confirm import STATISTICAL, alike, by_chance, comes_back
from attnfuzz.harness.sandbox.pursuit import Effort, Pursued, Pursuit
from attnfuzz.harness.search.beneath import SHARE, Symptoms, explaining, without
from attnfuzz.harness.search.compared import compared
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.harness.search.explained import ATTRIBUTION, SYMPTOM, Attribution, explain, explained_as_it_is
from attnfuzz.harness.search.known import KnownCause, KnownCauses, Showing, finding_name
from attnfuzz.harness.search.likely import contradicted
from attnfuzz.harness.search.messages import (
    FAILS_ALONE,
    AnyMessage,
    Caught,
    CausePair,
    Gap,
    Lost,
    Replay,
    ShrinkBudget,
    Slice,
    SliceDone,
    Suspect,
)
from attnfuzz.harness.search.misread import known_misreading
from attnfuzz.harness.search.needs import needs_late, needs_of
from attnfuzz.harness.search.novelty import Novelty
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.rechecked import rechecked
from attnfuzz.harness.search.smallest import smallest
from attnfuzz.harness.search.tally import CountingRunner
from attnfuzz.harness.search.variants import failing_alone, steadier, unaccepted
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.past import past_failures
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.device import Device
from attnfuzz.reference.features.row import Feature

RUNS_PER_SHRINKING_RUN = 4
"""Number of runs of a flaky failure's case per run of the shrinking budget."""


class _SearchEnds(Exception):
    """Ends the search, because there is a new failure or the time is up."""


class Hunt:
    """Runs one slice and sends its results as messages.

    The first new failure is pinned: from then on only its fingerprint counts as failing, which keeps shrinking on the
    bug that it began with. Other failures that occur meanwhile are set aside and reduced later. A failure that a known
    cause explains is a symptom, and is shrunk with less effort. `explained` adds explanations to the verdict on a
    caught case. Reduction stays within `capability`, if given, and on other backends within `elsewhere`. `novelty`
    selects interesting cases; without it there are none. Failures that match entries of the `ledger` hide no others.
    """

    def __init__(
        self,
        task: Slice,
        runner: RepeatingRunner,
        tell: Callable[[AnyMessage], None],
        *,
        capability: Capability | None = None,
        elsewhere: Callable[[str], Capability | None] = lambda _: None,
        novelty: Novelty | None = None,
        explained: Callable[[Any, Verdict], Verdict] = lambda _, verdict: verdict,
        ledger: Sequence[Entry] = (),
    ) -> None:
        self._ledger = [each for each in ledger if each.is_about(task.backend)]
        self._in_words = explained
        self._task = task
        self._runner = CountingRunner(runner, tell)
        self._tell = tell
        self._capability = capability
        self._elsewhere = elsewhere
        self._causes = KnownCauses(task.causes)
        self._novelty = novelty
        self._passed_over = set(task.known)
        self._held = set(task.held)
        self._beside: set[Fingerprint] = set()
        self._laid_bare = 0
        self._symptoms = Symptoms(self._runner.verdict, self._allowed)
        self._gaps: set[Fingerprint] = set()
        self._started = time.monotonic()
        self._handed_at = self._started if task.handed_at is None else task.handed_at
        self._pinned: Pinned[Any] | None = None
        self._history: tuple[AnyCase, ...] = ()
        self._aside: dict[Fingerprint, tuple[AnyCase, Verdict, tuple[AnyCase, ...]]] = {}
        self._unsupported: Counter[str] = Counter()
        self._replayed = 0

    def run(self, strategy: SearchStrategy[AnyCase]) -> SliceDone:
        """Search the cases of `strategy`, or do the slice's other task. Raises the runner's errors."""
        if self._task.comparison is not None:
            self._compare(self._task.comparison)
        elif self._task.minimized is not None:
            self._minimize(self._task.minimized)
        elif self._task.replays:
            self._replay()
        else:
            self._draw(strategy)
        self._settle_others()
        self._runner.flush()
        return SliceDone(
            tally=self._runner.total,
            replayed=self._replayed,
            stopped_early=self._pinned is not None,
            seconds=time.monotonic() - self._started,
            unsupported=dict(self._unsupported),
        )

    def _replay(self) -> None:
        """Judge the kept cases. Each failure is settled before the next case is run."""
        for replay in self._task.replays:
            if self._time_is_up():
                return
            self._replayed += 1
            if replay.finding is not None:
                self._tell(rechecked(self._runner, replay, replay.finding))
                continue
            verdict = self._runner.verdict(replay.case)
            self._note(replay.case, verdict)
            # A failure that does not occur now may be flaky.
            passing = [each for each in replay.failed if not any(alike(seen, each) for seen in verdict.observations)]
            for each in [verdict] if verdict.failures else [Verdict(observations=(seen,)) for seen in passing]:
                self._settle_all(replay, each)

    def _settle_all(self, replay: Replay, verdict: Verdict) -> None:
        """Settle the failures of a kept case, or of its related run if that run fails alone."""
        case, history = replay.case, self._runner.history
        alone = failing_alone(case, verdict, self._allowed, self._runner.verdict)
        if alone is not None:
            failure = verdict.failures[0]
            fingerprint = Fingerprint.of(case.backend, failure)
            if fingerprint not in self._passed_over and any(alike(failure, each) for each in replay.failed):
                self._tell(Suspect(fingerprint=fingerprint, case=case, observation=failure))
                self._tell(Lost(fingerprint=fingerprint, reason=FAILS_ALONE))
            case, verdict = alone
        while (pinned := self._pin_new(case, verdict, history, awaited=replay.failed)) is not None:
            self._settle(pinned)
            self._runner.shrinking = False

    def _compare(self, pair: CausePair) -> None:
        self._runner.shrinking = True
        if same := compared(pair, self._runner.verdict, self._pin, self._allowed, self._causes):
            self._tell(same)

    def _minimize(self, cause: KnownCause) -> None:
        """Shrink the case of a known cause further."""
        verdict = self._runner.verdict(cause.case)
        if cause.fingerprint.among(verdict.failures) is not None:
            self._runner.shrinking = True
            self._settle(self._pin(cause.fingerprint, cause.case, verdict))
            self._runner.shrinking = False

    def _draw(self, strategy: SearchStrategy[AnyCase]) -> None:
        with contextlib.suppress(_SearchEnds):
            run_examples(strategy, self._search, examples=self._task.examples, seed_of=self._task.seed)
        if self._pinned is not None:
            self._settle(self._pinned)

    def _search(self, case: AnyCase) -> None:
        """Judge a drawn case, and pin a new failure, which ends the search."""
        if self._time_is_up():
            raise _SearchEnds
        known = in_all_modes(self._passed_over, case, self._ledger)
        verdict = self._runner.search(case.having(past=past_failures(known, case.backend)))
        self._note(case, verdict)
        self._pinned = self._behind(case, verdict, self._runner.history if verdict.failures or verdict.passed else ())
        if self._pinned is not None:
            raise _SearchEnds

    def _note(self, case: AnyCase, verdict: Verdict) -> None:
        """Report a case's gaps, rejection and novelty."""
        if verdict.unsupported is not None:
            self._unsupported[verdict.unsupported] += 1
        for observation in verdict.observations:
            if observation.gap:
                self._tell_gap(case, observation)
        news = self._novelty.of(case, verdict) if self._novelty is not None else None
        if news is not None:
            self._tell(news)

    def _behind(self, case: AnyCase, verdict: Verdict, history: tuple[AnyCase, ...]) -> Pinned[Any] | None:
        """Return `_suspect`, but prefer a failure that occurs after known ones that the case ignored."""
        if not verdict.passed:
            return self._suspect(case, verdict, history)
        known = Verdict(observations=verdict.passed)
        fingerprints = [Fingerprint.of(case.backend, each) for each in verdict.passed]
        explained = [each for each in fingerprints if each in self._beside or self._explaining(each, case) != []]
        going_on = case.having(past=past_failures(explained, case.backend))
        if len(explained) < len(fingerprints):
            # This run ends with a failure that has a known fingerprint, but another cause.
            verdict = self._runner.verdict(going_on)
        return self._suspect(going_on, verdict, history) or self._suspect(case, known, history)

    def _suspect(self, case: AnyCase, verdict: Verdict, history: tuple[AnyCase, ...]) -> Pinned[Any] | None:
        """Return `_pin_new` for the case, or for its related run as a separate case if that run fails alone."""
        case, verdict = failing_alone(case, verdict, self._allowed, self._runner.verdict) or (case, verdict)
        return self._pin_new(case, verdict, history)

    def _pin_new(
        self, case: AnyCase, verdict: Verdict, history: tuple[AnyCase, ...], *, awaited: Sequence[Observation] = ()
    ) -> Pinned[Any] | None:
        """Return the failure of `case` to shrink: its worst new one, if it comes back in a fresh worker, else None.

        A failure that does not come back runs again under other conditions, also after the cases of `history`.
        `awaited` failures are suspects that have to be settled.
        """
        if not verdict.failures or self._is_held(case, verdict):
            return None
        self._history = history
        new = self._new_failure(case, verdict, awaited)
        if new is None:
            return self._beneath(Fingerprint.of(case.backend, verdict.failures[0]), case, verdict)
        self._passed_over.add(Fingerprint.of(case.backend, new))
        return self._confirmed(new, case, verdict)

    def _is_held(self, case: AnyCase, verdict: Verdict) -> bool:
        """Return whether another job is settling a failure of the case, whose others may have the same cause."""
        return not self._held.isdisjoint(Fingerprint.of(case.backend, failure) for failure in verdict.failures)

    def _new_failure(self, case: AnyCase, verdict: Verdict, awaited: Sequence[Observation]) -> Observation | None:
        """Return the worst unknown failure. If it occurs together with a known one, it must have another cause."""
        worst = Fingerprint.of(case.backend, verdict.failures[0])
        causes = self._causes.showing_as(worst)
        for failure in verdict.failures:
            fingerprint = Fingerprint.of(case.backend, failure)
            if fingerprint in self._passed_over:
                continue
            wanted = fingerprint == worst or any(alike(failure, each) for each in awaited)
            if wanted or not self._symptoms.include(failure, causes, case.backend):
                return failure
        return None

    def _beneath(self, fingerprint: Fingerprint, case: AnyCase, verdict: Verdict) -> Pinned[Any] | None:
        """Return a failure hidden behind a known one: no known cause can show in the case, or it fails without them."""
        present = self._explaining(fingerprint, case)
        if present is None or fingerprint in self._beside:
            return None
        if not present:
            self._beside.add(fingerprint)
            return self._confirmed(verdict.failures[0], case, verdict, beside=True)
        if self._laid_bare >= SHARE * self._runner.total.searched:
            return None
        self._laid_bare += 1
        variant = without(case, present, self._allowed, turn=self._laid_bare)
        return None if variant is None else self._suspect(variant, self._runner.verdict(variant), self._runner.history)

    def _explaining(self, fingerprint: Fingerprint, case: AnyCase) -> Sequence[KnownCause] | None:
        return explaining(self._causes.showing_as(fingerprint), case, fingerprint, self._accepts)

    def _accepts(self, fingerprint: Fingerprint, case: AnyCase) -> bool:
        return reason_of(self._ledger, fingerprint, case) is not None

    def _confirmed(
        self, failure: Observation, case: AnyCase, verdict: Verdict, *, beside: bool = False
    ) -> Pinned[Any] | None:
        """Return a failure of `case` if it comes back in a fresh worker, else None."""
        fingerprint = Fingerprint.of(case.backend, failure)
        self._tell(Suspect(fingerprint=fingerprint, case=case, observation=failure, beside=beside))
        self._runner.shrinking = True
        budget = self._budget()
        if not comes_back(self._runner, case, failure):
            pursued = self._pursuit(case, failure, budget).outcome()
            self._runner.shrinking = False
            self._tell_pursued(fingerprint, case, pursued)
            return None
        return self._pin(fingerprint, case, verdict)

    def _pin(self, fingerprint: Fingerprint, case: AnyCase, verdict: Verdict) -> Pinned[Any]:
        return Pinned(
            fingerprint,
            case,
            verdict,
            run=self._runner.verdict,
            budget=self._budget(),
            aside=self._set_aside,
            slowest=self._runner.hang_seconds if fingerprint.kind is Kind.HANG else 0.0,
        )

    def _pursuit(
        self, case: AnyCase, observation: Observation, budget: ShrinkBudget, *, came_back: bool = False
    ) -> Pursuit:
        late = self._capability is not None and self._capability.device is Device.CUDA
        return Pursuit(
            self._runner,
            case,
            observation,
            self._history,
            Effort(RUNS_PER_SHRINKING_RUN * budget.runs, budget.seconds),
            late=late,
            came_back=came_back,
        )

    def _tell_pursued(self, fingerprint: Fingerprint, first: AnyCase, pursued: Pursued) -> None:
        if not pursued.is_finding:
            self._tell(Lost(fingerprint=fingerprint, tried=pursued.recurrence))
            return
        needs = needs_late(pursued, self._runner.verdict)
        cause = self._race_of(fingerprint, pursued, needs) if needs else ""
        self._tell(
            Caught(
                fingerprint=fingerprint,
                first=first,
                case=pursued.case,
                observation=pursued.observation,
                verdict=pursued.verdict,
                recurrence=pursued.recurrence,
                history=pursued.history,
                needs=needs,
                # Wrong numbers depend on values, and each variant passes with most values.
                ablated=bool(needs) or not by_chance(pursued.observation),
                cause=cause,
                beside=fingerprint in self._beside,
            )
        )

    def _race_of(self, fingerprint: Fingerprint, pursued: Pursued, needs: tuple[str, ...]) -> str:
        """Return the name of the known cause that explains a race with a late device, or "" if the cause is new."""
        pinned = self._pin(fingerprint, pursued.case, pursued.verdict)
        cause = explain(pinned, self._causes, self._allowed).cause
        showing = Showing(case=pursued.case, fingerprint=fingerprint, needs=needs)
        return self._causes.add(showing, name=finding_name(pursued.case, pursued.observation), cause=cause)

    def _settle(self, pinned: Pinned[Any]) -> None:
        """Shrink a failure, whose first case came back, and send the smallest case that comes back."""
        pinned, cause = self._explained(self._steadier(self._unaccepted(pinned)))
        small, clues = smallest(
            pinned,
            cause,
            self._allowed,
            capability=self._capability,
            runs=self._task.shrink.runs,
            plainly=not self._may_turn_into_another(pinned.fingerprint),
        )
        for case in dict.fromkeys((small, pinned.first)):
            observation = pinned.observation(case)
            assert observation is not None
            if case == pinned.first:
                # This case came back before.
                self._runner.renew()
            elif not comes_back(self._runner, case, observation):
                continue
            pursuit = self._pursuit(case, observation, self._budget(), came_back=True)
            if not pursuit.is_steady():
                self._tell_pursued(pinned.fingerprint, pinned.first, pursuit.outcome())
                return
            known = cause if cause or case == pinned.first else self._when_small(pinned, case, clues)
            self._tell_caught(pinned, case, clues, known)
            return

    def _may_turn_into_another(self, fingerprint: Fingerprint) -> bool:
        """Return whether a known cause shows in the same way, other than the one whose case is minimized."""
        own = self._task.minimized
        return any(own is None or each.name != own.name for each in self._causes.showing_as(fingerprint))

    def _unaccepted(self, pinned: Pinned[Any]) -> Pinned[Any]:
        """Return the failure in a case in which the ledger does not accept it, if it occurs in one."""
        fingerprint = pinned.fingerprint
        if pinned.spent or not self._accepts(fingerprint, pinned.first):
            return pinned
        case = unaccepted(pinned, self._allowed, lambda each: self._accepts(fingerprint, each))
        return pinned if case is None else self._pinned_at(pinned, case) or pinned

    def _steadier(self, pinned: Pinned[Any]) -> Pinned[Any]:
        """Return the failure with values that show it more often, if it is a wrong number and such values exist."""
        if pinned.fingerprint.kind not in STATISTICAL or pinned.spent:
            return pinned
        return self._pinned_at(pinned, steadier(pinned, self._allowed)) or pinned

    def _pinned_at(self, pinned: Pinned[Any], case: AnyCase) -> Pinned[Any] | None:
        """Return the failure with another case that fails alike, or None if it does not come back there."""
        if case == pinned.first:
            return pinned
        observation = pinned.observation(case)
        back = observation is not None and comes_back(self._runner, case, observation)
        return self._pin(pinned.fingerprint, case, pinned.verdict(case)) if back else None

    def _explained(self, pinned: Pinned[Any]) -> tuple[Pinned[Any], KnownCause | None]:
        """Return the failure to shrink, and the known cause that explains it, which lowers its budget."""
        if pinned.spent:
            cause = explained_as_it_is(pinned, self._causes, self._allowed, self._within(ATTRIBUTION))
            explained = Attribution(cause, pinned.first)
            pinned.limit(self._budget())
        else:
            explained = explain(pinned, self._causes, self._allowed)
        # Shrink a symptom from a case that has only its cause's clues. Otherwise it might come to need the clues of
        # another cause.
        if there := self._pinned_at(pinned, explained.plain or explained.case):
            pinned = there
        elif explained.case != pinned.first:
            explained = Attribution(None, pinned.first)
        if explained.cause is not None:
            seconds = min(SYMPTOM.seconds, self._budget().seconds)
            pinned.limit(replace(SYMPTOM, seconds=seconds))
        return pinned, explained.cause

    def _when_small(self, pinned: Pinned[Any], case: AnyCase, clues: frozenset[Feature]) -> KnownCause | None:
        """Return the known cause of a failure's smallest case, if any. A larger case may fail in several ways."""
        small = self._pin(pinned.fingerprint, case, pinned.verdict(case))
        return explained_as_it_is(small, self._causes, self._allowed, self._within(ATTRIBUTION), needed=clues)

    def _allowed(self, case: AnyCase) -> bool:
        own = case.backend == self._task.backend
        capability = self._capability if own else self._elsewhere(case.backend)
        return capability is None or capability.why_not(case) is None

    def _tell_caught(
        self, pinned: Pinned[Any], case: AnyCase, clues: frozenset[Feature], cause: KnownCause | None
    ) -> None:
        observation = pinned.observation(case)
        assert observation is not None
        known = clues if cause is None else clues | cause.clues
        needs = needs_of(pinned, case, self._allowed, clues=known)
        ablated = not pinned.spent
        fingerprint, verdict = pinned.fingerprint, pinned.verdict(case)
        if self._budget().seconds > 0:
            verdict = self._in_words(case, verdict)
            observation = fingerprint.among(verdict.failures) or observation
        showing = Showing(
            case=case,
            fingerprint=fingerprint,
            needs=needs,
            ablated=ablated,
            mistakes=observation.mistakes,
            exception=observation.exception,
        )
        if cause is not None and contradicted(cause, showing):
            cause = None
        if cause is None and self._budget().seconds > 0:
            cause = known_misreading(showing, self._causes, self._runner.verdict, self._allowed)
        beside = fingerprint in self._beside
        name = finding_name(case, observation, apart=needs if beside else None)
        cause_name = self._causes.add(showing, name=name, cause=cause)
        self._tell(
            Caught(
                fingerprint=fingerprint,
                first=pinned.first,
                case=case,
                observation=observation,
                verdict=verdict,
                needs=needs,
                ablated=ablated,
                cause=cause_name,
                beside=beside,
            )
        )

    def _settle_others(self) -> None:
        while self._aside and not self._time_is_up():
            self._settle_aside(next(iter(self._aside)))
        for fingerprint, (case, verdict, _) in self._aside.items():
            if fingerprint not in self._passed_over:
                # There is no time left to confirm it, but it must be reported.
                self._tell(Suspect(fingerprint=fingerprint, case=case, observation=verdict.failures[0], left_over=True))

    def _settle_aside(self, fingerprint: Fingerprint) -> None:
        if pinned := self._suspect(*self._aside.pop(fingerprint)):
            self._settle(pinned)

    def _set_aside(self, case: AnyCase, verdict: Verdict) -> None:
        if verdict.failures and not self._task.first_only and not self._is_held(case, verdict):
            fingerprint = Fingerprint.of(case.backend, verdict.failures[0])
            if fingerprint not in self._passed_over:
                self._aside.setdefault(fingerprint, (case, verdict, self._runner.history))

    def _tell_gap(self, case: AnyCase, observation: Observation) -> None:
        fingerprint = Fingerprint.of(case.backend, observation)
        if fingerprint not in self._gaps:
            self._gaps.add(fingerprint)
            self._tell(Gap(fingerprint=fingerprint, case=case, observation=observation))

    def _time_is_up(self) -> bool:
        seconds = self._task.seconds
        return seconds is not None and self._seconds >= seconds

    def _budget(self) -> ShrinkBudget:
        """Return the budget for shrinking the next failure."""
        return self._within(self._task.shrink)

    def _within(self, budget: ShrinkBudget) -> ShrinkBudget:
        """Return a budget, limited to the remaining time for shrinking."""
        limit = self._task.shrink_seconds
        return budget if limit is None else replace(budget, seconds=min(budget.seconds, limit - self._seconds))

    @property
    def _seconds(self) -> float:
        """The slice's seconds, as its limits count them."""
        return time.monotonic() - self._handed_at
