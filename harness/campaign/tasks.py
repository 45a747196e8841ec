"""The next task of a job: settle a leftover suspect, run kept cases again, or draw new ones."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from attnfuzz.harness.campaign.comparisons import MOST_SECONDS, Comparisons
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.campaign.minimizing import Minimizing
from attnfuzz.harness.campaign.plan import MOST_EXAMPLES, Limits, Plan
from attnfuzz.harness.campaign.replays import REPLAYS_PER_SLICE, Replays, replay_slice
from attnfuzz.harness.campaign.schedule import OWN_TIME, Schedule
from attnfuzz.harness.campaign.scripting import Scripting
from attnfuzz.harness.campaign.shrinking import NOTHING, ShrinkingTime
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.campaign.turns import Running
from attnfuzz.harness.campaign.under_way import SuspectKey, UnderWay
from attnfuzz.harness.family import family_with
from attnfuzz.harness.search.drawn_part import EVERYTHING, DrawnPart
from attnfuzz.harness.search.examples import drawn_capability
from attnfuzz.harness.search.messages import Replay, ShrinkBudget, Slice, SliceKind
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.strategies.coverage import Pair, choose_lean
from attnfuzz.strategies.lean import Lean

REPLAYS_SHARE = 0.2
"""Share of the budget for kept cases. Past findings are not limited, because their state matters most."""

SLICES_PER_LEAN = 2
"""Every other slice is biased; those in between cover the rest."""

MOST_CUT_OFFS = 5
"""Number of times that a suspect's job may be killed before the suspect is assumed to be the reason."""

_OWN_BUDGET = frozenset({SliceKind.COMPARED, SliceKind.MINIMIZED})
"""Slices that come with a budget for shrinking."""

ChooseLean = Callable[[str, Collection[Pair], int], Lean]
"""Returns the bias of a backend's slice, from the reached pairs and a seed."""


@dataclass(kw_only=True)
class Tasks:
    """Chooses the slices of a campaign. `passed_over` returns the failures of a backend not to be found again.

    Unsettled suspects come first, unless some backends got less than their promised time: one with many bugs would take
    most of a short campaign.
    """

    plan: Plan
    knowledge: Knowledge
    standing: Standing
    schedule: Schedule
    shrinking: ShrinkingTime
    replays: Replays
    comparisons: Comparisons
    minimizing: Minimizing
    scripting: Scripting
    passed_over: Callable[[str], tuple[Fingerprint, ...]]
    choose_lean: ChooseLean
    limits: Limits
    _cut_off: Counter[SuspectKey] = field(default_factory=Counter)

    @property
    def found(self) -> bool:
        """Whether the campaign has the finding that it was to run for: only scripts are left to make."""
        return self.plan.until_finding and bool(self.standing.unexpected)

    @property
    def complete(self) -> bool:
        """Whether it has that finding, and a script of each new cause: a job may file others while one is made."""
        new = (cause for cause in self.standing.causes if cause.known is None)
        return self.found and not any(cause.name in self.scripting.waiting for cause in new)

    def next(self, at: float, under_way: Collection[UnderWay], unsent: Mapping[str, int]) -> UnderWay | None:
        """Return the next slice, `at` seconds into the campaign, or None if there is nothing to do or no time left.

        `unsent` are each backend's searched examples that no event has reported yet.
        """
        if self.plan.trial is not None:
            return self._of_trial(at, under_way, unsent, ShrinkBudget(seconds=self.plan.trial))
        if self.found:
            return self.scripting.next(at, self.limits.ended, searched=True)
        left = None if self.plan.seconds is None else self.plan.seconds - at
        if left is not None and left <= 0:
            return self._last(at, under_way)
        short = {} if self.plan.seconds is None else self.schedule.short(_running(at, under_way))
        again = () if short else self._left_over(under_way)
        scripted = None if again else self.scripting.next(at, self.limits.ended, searched=False)
        if scripted is not None:
            return scripted
        unsearched = any(not used for used, _ in short.values())
        task = self._once_more(again) if again else self._other(at, under_way, unsent, unsearched=unsearched)
        if task is None:
            return self.scripting.next(at, self.limits.ended, searched=True)
        shrink = task.shrink if task.kind in _OWN_BUDGET else self.shrinking.budget(at)
        if any(self.knowledge.times_seen[key] > 1 for key in again):
            # Shrinking did not finish last time: file it as it is.
            shrink = NOTHING
        limits = (left, task.seconds, None if task.kind is SliceKind.KEPT else self.plan.seconds_per_slice)
        seconds = min((limit for limit in limits if limit is not None), default=None)
        known = self.passed_over(task.backend)
        if task.kind is SliceKind.DRAWN:
            # If they are not confirmed, a later slice can find them again.
            keys = (key for run in under_way for key in run.held)
            held = dict.fromkeys(fingerprint for fingerprint, _ in keys if fingerprint.backend == task.backend)
            task = replace(task, held=tuple(held))
        shrink_seconds = None if left is None else max(0.0, self.limits.shrunk - at)
        causes = self.knowledge.causes_near(task.backend)
        if task.minimized is not None:
            # It would explain itself.
            causes = tuple(each for each in causes if each.name != task.minimized.name)
        if task.kind is SliceKind.COMPARED:
            shrink_seconds = MOST_SECONDS if shrink_seconds is None else min(MOST_SECONDS, shrink_seconds)
        task = replace(task, known=known, causes=causes, seconds=seconds, shrink=shrink, shrink_seconds=shrink_seconds)
        return UnderWay(task, since=at, again=again)

    def _other(
        self, at: float, under_way: Collection[UnderWay], unsent: Mapping[str, int], *, unsearched: bool
    ) -> Slice | None:
        """Return the next slice that settles no suspects. If a backend is `unsearched`, draw before minimizing."""
        seconds = self.plan.seconds
        found = self.replays.next_slice(None if seconds is None else seconds * REPLAYS_SHARE - at)
        minimizing_first = seconds is not None and not unsearched
        return (
            found
            or (self.minimizing.next_slice(at, seconds) if minimizing_first else None)
            or self.comparisons.next_slice(at, under_way)
            or self._drawn(_running(at, under_way), under_way, unsent)
            or self.minimizing.next_slice(at, seconds)
            or self.comparisons.next_slice(None, under_way)
        )

    def _of_trial(
        self, at: float, under_way: Collection[UnderWay], unsent: Mapping[str, int], shrink: ShrinkBudget
    ) -> UnderWay | None:
        """Return a slice of a backend that has none now, and no finding."""
        busy = {run.task.backend for run in under_way}
        found = {each.fingerprint.backend for each in self.standing.filed}
        unsent = {**unsent, **dict.fromkeys(busy | found, MOST_EXAMPLES)}
        task = self._drawn(_running(at, under_way), under_way, unsent)
        return None if task is None else UnderWay(replace(task, shrink=shrink, first_only=True), since=at)

    def _last(self, at: float, under_way: Collection[UnderWay]) -> UnderWay | None:
        """Return a slice after the search: suspects to confirm and file as they are, scripts, causes to compare."""
        again = self._left_over(under_way) if at < self.limits.ended else ()
        if not again:
            return self.scripting.next(at, self.limits.ended, searched=True) or self._compared(at, under_way)
        task = self._once_more(again)
        known = self.passed_over(task.backend)
        task = replace(task, known=known, seconds=self.limits.ended - at, shrink=NOTHING, shrink_seconds=0.0)
        return UnderWay(task, since=at, again=again)

    def _compared(self, at: float, under_way: Collection[UnderWay]) -> UnderWay | None:
        # All suspects are settled or being settled: comparing gets the remaining time.
        task = self.comparisons.next_slice(None, under_way) if at < self.limits.ended else None
        if task is None:
            return None
        seconds = self.limits.ended - at
        causes = self.knowledge.causes_near(task.backend)
        least = min(MOST_SECONDS, seconds)
        task = replace(task, causes=causes, seconds=seconds, shrink_seconds=least)
        return UnderWay(task, since=at)

    def grants(self, run: UnderWay, fingerprint: Fingerprint, under_way: Iterable[UnderWay]) -> bool:
        """Return whether a slice may settle a failure: no other one does, nor has done since this one began.

        Suspects that were handed out again are settled in any case.
        """
        others = (each for each in under_way if each is not run)
        settled = self.knowledge.is_filed(fingerprint) and fingerprint not in run.task.known
        granted = bool(run.again) or not (settled or any(each.settles(fingerprint) for each in others))
        if granted:
            run.claimed.add(fingerprint.claimed)
        return granted

    def cut_off(self, run: UnderWay) -> list[SuspectKey]:
        """Record that a job was killed while it ran a slice, whose suspects are handed out again.

        Returns those to give up, which were cut off `MOST_CUT_OFFS` times.
        """
        held = run.held & self.knowledge.pending.keys()
        self._cut_off.update(held)
        return [key for key in held if self._cut_off[key] >= MOST_CUT_OFFS]

    def put_back(self, run: UnderWay) -> bool:
        """Hand out the kept cases of a killed job again. Returns False for those without progress."""
        return bool(run.again) or self.replays.put_back(run.task)

    def _left_over(self, under_way: Iterable[UnderWay]) -> tuple[SuspectKey, ...]:
        """Return suspects of one backend that no running slice settles."""
        if not self.knowledge.pending:
            return ()
        held = {key for run in under_way for key in run.held}
        waiting = [key for key in self.knowledge.pending if key not in held]
        return tuple(key for key in waiting if key[0].backend == waiting[0][0].backend)[:REPLAYS_PER_SLICE]

    def _once_more(self, suspects: Iterable[SuspectKey]) -> Slice:
        failed: dict[AnyCase, tuple[Observation, ...]] = {}
        for key in suspects:
            failed[key[1]] = (*failed.get(key[1], ()), self.knowledge.pending[key].observation)
        replays = [Replay(case=case, failed=observations) for case, observations in failed.items()]
        return replay_slice(replays[0].case.backend, SliceKind.ONCE_MORE, replays, seed=self.plan.seed)

    def _drawn(
        self, running: Sequence[Running], under_way: Iterable[UnderWay], unsent: Mapping[str, int]
    ) -> Slice | None:
        promised = Counter(unsent)
        # Without a number of examples, any number may be promised.
        for run in under_way if self.plan.examples is not None else ():
            promised[run.task.backend] += run.promised
        task = self.schedule.next_slice(running, promised)
        if task is None:
            return None
        every_other = task.index is not None and task.index % SLICES_PER_LEAN == SLICES_PER_LEAN - 1
        biased = every_other and self.plan.trial is None
        reached = self.standing.score(task.backend).pairs
        return replace(task, lean=self.choose_lean(task.backend, reached, task.seed)) if biased else task


def _running(at: float, under_way: Iterable[UnderWay]) -> list[Running]:
    """Return the backends searched or shrunk at `at`, with their seconds so far."""
    return [(run.task.backend, at - run.since) for run in under_way if run.task.kind not in OWN_TIME]


def lean_to_unreached(backend: str, reached: Collection[Pair], seed: int, *, part: DrawnPart = EVERYTHING) -> Lean:
    """Return a lean towards some pairs that `part` of `backend` can reach and has not `reached`, chosen by `seed`."""
    capability = drawn_capability(backend, part)
    possible = family_with(capability).possible_pairs(capability)
    return choose_lean(possible.difference(reached), reached, seed)
