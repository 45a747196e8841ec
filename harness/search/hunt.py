"""One slice of the search: draw cases until one fails in a new way, then settle it."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis.strategies import SearchStrategy

from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.sandbox.confirm import alike
from attnfuzz.harness.search.case_stages import CaseStages, Surroundings
from attnfuzz.harness.search.compared import compared
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.harness.search.known import KnownCause, KnownCauses
from attnfuzz.harness.search.messages import (
    FAILS_ALONE,
    AnyMessage,
    CausePair,
    Lost,
    Replay,
    Slice,
    SliceDone,
    Suspect,
)
from attnfuzz.harness.search.new_failures import NewFailures
from attnfuzz.harness.search.novelty import Novelty
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.rare_deaths import RareDeaths
from attnfuzz.harness.search.rechecked import rechecked
from attnfuzz.harness.search.recognition import Recognition
from attnfuzz.harness.search.settle import settle_confirmed
from attnfuzz.harness.search.side_results import SideResults
from attnfuzz.harness.search.slice_time import SliceTime
from attnfuzz.harness.search.tally import CountingRunner
from attnfuzz.harness.search.variants import failing_alone
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.device import Device

MOST_HIDDEN = 8
"""Maximum number of known failures that are taken from a case one after another."""

_Ran = tuple[AnyCase, Verdict, tuple[AnyCase, ...]]
"""A case, its verdict, and the cases that its worker had run before it."""


class _SearchEnds(Exception):
    """Ends the search, because there is a new failure or the time is up."""


class Hunt:
    """Runs one slice and sends its results as messages.

    The first new failure is pinned: from then on only its fingerprint counts as failing, which keeps shrinking on the
    bug that it began with. Other failures that occur meanwhile are set aside and settled later. `explained` adds
    explanations to the verdict on a caught case. Reduction stays within `capability`, if given, and on other backends
    within `elsewhere`. `novelty` selects interesting cases; without it there are none. Failures that match entries of
    the `ledger` hide no others. `claim` returns whether the slice may settle a failure: another job may be at it.
    `deaths` keeps known deadly features out of drawn cases for a GPU. `stateful` are backends known to keep state from
    case to case; the hunt adds to them.
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
        claim: Callable[[Fingerprint], bool] = lambda _: True,
        deaths: RareDeaths | None = None,
        stateful: set[str] | None = None,
    ) -> None:
        def allowed(case: AnyCase) -> bool:
            able = capability if case.backend == task.backend else elsewhere(case.backend)
            return able is None or able.why_not(case) is None

        self._task, self._tell, self._allowed = task, tell, allowed
        self._runner = CountingRunner(runner, tell)
        self._side_results = SideResults(tell, novelty)
        self._time = SliceTime(task)
        self._causes = KnownCauses(task.causes)
        self._failures = NewFailures(task, self._causes, self._runner, allowed, ledger)
        self._claim = claim
        self._deaths = RareDeaths(ledger) if deaths is None else deaths
        self._on_gpu = capability is not None and capability.device is Device.CUDA
        self._recognition = Recognition(task, self._causes, self._runner, allowed, ledger, self._deaths)
        self._stages = CaseStages(
            Surroundings(
                runner=self._runner,
                tell=tell,
                capability=capability,
                allowed=allowed,
                in_words=explained,
                time=self._time,
                causes=self._causes,
                failures=self._failures,
                minimized="" if task.minimized is None else task.minimized.name,
                stateful=set() if stateful is None else stateful,
            )
        )
        self._pinned: Pinned[Any] | None = None
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
            seconds=self._time.seconds,
            unsupported=dict(self._side_results.unsupported),
        )

    def _replay(self) -> None:
        """Judge the kept cases. Each failure is settled before the next case is run."""
        for replay in self._task.replays:
            if self._time.is_up:
                return
            self._replayed += 1
            if replay.finding is not None:
                self._tell(rechecked(self._runner, replay, replay.finding))
                continue
            verdict = self._runner.verdict(replay.case)
            self._side_results.note(replay.case, verdict)
            # A failure that does not occur now may be flaky.
            passing = [each for each in replay.failed if not any(alike(seen, each) for seen in verdict.observations)]
            for each in [verdict] if verdict.failures else [Verdict(observations=(seen,)) for seen in passing]:
                self._settle_all(replay, each)

    def _settle_all(self, replay: Replay, verdict: Verdict) -> None:
        """Settle the failures of a kept case, or of its related run if that run fails alone."""
        case, history = replay.case, self._runner.history
        if not replay.failed:
            case, verdict, history = self._beneath_known(case, verdict, history)
        alone = failing_alone(case, verdict, self._allowed, self._runner.verdict)
        if alone is not None:
            failure = verdict.failures[0]
            fingerprint = Fingerprint.of(case.backend, failure)
            if not self._failures.is_known(fingerprint) and any(alike(failure, each) for each in replay.failed):
                self._tell(Suspect(fingerprint=fingerprint, case=case, observation=failure))
                self._tell(Lost(fingerprint=fingerprint, reason=FAILS_ALONE))
            case, verdict = alone
        while (pinned := self._new(case, verdict, history, awaited=replay.failed)) is not None:
            self._settle(pinned)
            self._runner.shrinking = False

    def _compare(self, pair: CausePair) -> None:
        self._runner.shrinking = True
        if same := compared(pair, self._runner.verdict, self._stages.pin, self._allowed, self._causes):
            self._tell(same)

    def _minimize(self, cause: KnownCause) -> None:
        """Shrink the case of a known cause further."""
        verdict = self._runner.verdict(cause.case)
        if cause.fingerprint.among(verdict.failures) is not None:
            self._runner.shrinking = True
            self._settle(self._stages.pin(cause.fingerprint, cause.case, verdict))
            self._runner.shrinking = False

    def _draw(self, strategy: SearchStrategy[AnyCase]) -> None:
        with contextlib.suppress(_SearchEnds):
            run_examples(strategy, self._search, examples=self._task.examples, seed_of=self._task.seed)
        if self._pinned is not None:
            self._settle(self._pinned)

    def _search(self, case: AnyCase) -> None:
        """Judge a drawn case, and pin a new failure, which ends the search."""
        if self._time.is_up:
            raise _SearchEnds
        if self._on_gpu:
            case = self._deaths.instead_of(case, self._causes, self._allowed)
        verdict = self._runner.search(self._failures.with_past(case, self._recognition.explained))
        self._side_results.note(case, verdict)
        self._pinned = self._behind(case, verdict, self._runner.history if verdict.failures or verdict.passed else ())
        if self._pinned is not None:
            raise _SearchEnds

    def _behind(self, case: AnyCase, verdict: Verdict, history: tuple[AnyCase, ...]) -> Pinned[Any] | None:
        """Return `_alone`, but prefer a failure that occurs after known ones that the case ignored."""
        if not verdict.passed:
            return self._alone(case, verdict, history)
        going_on, after_all = self._failures.after_explained(case, verdict)
        # Alone, the case ends with the first step that fails.
        first = min(each.step for each in verdict.passed)
        known = Verdict(observations=tuple(each for each in verdict.passed if each.step == first))
        if not after_all:
            # This run ends with a failure that has a known fingerprint, but another cause.
            verdict = self._runner.verdict(going_on)
        return self._alone(going_on, verdict, history) or self._alone(case, known, history)

    def _alone(self, case: AnyCase, verdict: Verdict, history: tuple[AnyCase, ...]) -> Pinned[Any] | None:
        """Return `_new` for the case, or for its related run as a separate case if that run fails alone."""
        case, verdict, history = self._beneath_known(case, verdict, history)
        case, verdict = failing_alone(case, verdict, self._allowed, self._runner.verdict) or (case, verdict)
        return self._new(case, verdict, history)

    def _beneath_known(self, case: AnyCase, verdict: Verdict, history: tuple[AnyCase, ...]) -> _Ran:
        """Return a case without the known reasons of its failures, as far as these are not on file or being settled.

        A drawn case may have several of them, each of which hides the next one.
        """
        for _ in range(MOST_HIDDEN):
            if not verdict.failures or not self._failures.is_unsettled(case, verdict):
                break
            less, again = self._recognition.beneath(case, verdict)
            if less == case:
                break
            case, verdict, history = less, again, self._runner.history
        return case, verdict, history

    def _new(
        self, case: AnyCase, verdict: Verdict, history: tuple[AnyCase, ...], *, awaited: Sequence[Observation] = ()
    ) -> Pinned[Any] | None:
        """Return the worst new failure of a case if it comes back, or one hidden behind a known failure, or None."""
        suspect = self._failures.choose(case, verdict, awaited)
        if suspect is not None:
            if not self._claim(suspect.fingerprint):
                self._failures.leave(suspect)
                return None
            self._tell(suspect)
            return self._stages.confirm(self._stages.pin(suspect.fingerprint, case, verdict, history))
        variant = self._failures.beneath(case, verdict)
        return None if variant is None else self._alone(variant, self._runner.verdict(variant), self._runner.history)

    def _settle(self, confirmed: Pinned[Any]) -> None:
        """Send the finding of a confirmed failure, if it always comes back."""
        if (caught := settle_confirmed(self._stages, confirmed)) is not None:
            self._recognition.settled(confirmed.first, caught.fingerprint, caught.case)
            self._tell(caught)

    def _settle_others(self) -> None:
        """Settle the failures that were set aside. Those for which there is no time are reported."""
        while (aside := self._failures.next_aside()) is not None:
            case, verdict, history = aside
            fingerprint = Fingerprint.of(case.backend, verdict.failures[0])
            if not self._time.is_up:
                if (pinned := self._alone(case, verdict, history)) is not None:
                    self._settle(pinned)
            elif not self._failures.is_known(fingerprint):
                self._tell(Suspect(fingerprint=fingerprint, case=case, observation=verdict.failures[0], left_over=True))
