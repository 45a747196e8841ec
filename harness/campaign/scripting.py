"""Scripts that no job has made: the time of its slice was over, it was killed, or the campaign was."""

from collections import defaultdict

from attnfuzz.harness.campaign.events import Event, FindingFiled, FindingMinimized, ScriptMade, SliceFinished
from attnfuzz.harness.campaign.under_way import SuspectKey, UnderWay
from attnfuzz.harness.search.examples import derive_seed
from attnfuzz.harness.search.messages import Caught, Slice, SliceKind
from attnfuzz.harness.verdict.failures import Verdict

NOT_MADE = "the campaign ended before it was made; attnfuzz export makes it"
JOB_KILLED = "its job was killed while it was made"

SHARE = 0.05
"""Maximum share of the jobs' time for scripts of failures whose cause has another one, or a page."""

SECONDS_TO_HAND_OVER = 1.0
"""Time between the limit of a script and the end of the campaign, in which its result arrives."""


class Scripting:
    """Provides slices that make the scripts of this campaign's findings without one, new causes first.

    A handler of events. A resumed campaign makes those for which it had no time. `making` are the findings whose
    scripts each job makes or runs, by their failures: they run beside the job's later slices.
    """

    def __init__(self, *, seed: int, jobs: int) -> None:
        self._seed, self._jobs = seed, jobs
        self._waiting: dict[str, FindingFiled] = {}
        self._seconds = 0.0
        self.making: defaultdict[int, dict[SuspectKey, str]] = defaultdict(dict)

    def __call__(self, event: Event) -> None:
        """Learn from `event`."""
        match event:
            case FindingFiled(name=name):
                self._waiting[name] = event
            case FindingMinimized(name=name, finding=finding):
                self._waiting.pop(name, None)
                self._waiting[finding.name] = finding
                self._forget(name, finding)
            case ScriptMade(name=name, obstacle=obstacle) if obstacle != NOT_MADE:
                self._waiting.pop(name, None)
            case SliceFinished(kind=SliceKind.SCRIPTED, seconds=seconds):
                self._seconds += seconds

    @property
    def waiting(self) -> tuple[str, ...]:
        """The findings without a script, and without a reason for that."""
        return tuple(self._waiting)

    def next(self, at: float, ended: float, *, searched: bool) -> UnderWay | None:
        """Return the next slice of a campaign that will have `ended`, or None if no script waits or no time is left.

        Until the search is over (`searched`), scripts of symptoms and of failures that the ledger knows are made one at
        a time, in at most `SHARE` of the time.
        """
        seconds = ended - SECONDS_TO_HAND_OVER - at
        held = {name for names in self.making.values() for name in names.values()}
        free = [each for name, each in self._waiting.items() if name not in held]
        one_runs = any(_can_wait(each) for name, each in self._waiting.items() if name in held)
        if not searched and (one_runs or self._seconds > SHARE * self._jobs * at):
            free = [each for each in free if not _can_wait(each)]
        if not free or seconds <= 0:
            return None
        finding = min(free, key=lambda each: (each.known is not None, bool(each.cause)))
        task = self._slice(finding.case.backend, finding.name, scripted=_caught(finding), seconds=seconds)
        return UnderWay(task, since=at, unscripted={(finding.fingerprint, finding.case): finding.name})

    def begin(self, job: int, run: UnderWay) -> None:
        """Let a slice have the scripts that its job makes, with its own one."""
        self.making[job].update(run.unscripted)
        run.unscripted = self.making[job]

    def _forget(self, name: str, finding: FindingFiled) -> None:
        """Forget the script of the case that a smaller one replaces: the new finding may have the same name."""
        for making in self.making.values():
            for key in [key for key, made in making.items() if made == name and key[1] != finding.case]:
                del making[key]

    def awaited(self, job: int, at: float) -> UnderWay | None:
        """Return a slice that waits for the scripts of a job which has nothing else to do, or None if it has none."""
        making = self.making[job]
        if not making:
            return None
        fingerprint, _ = next(iter(making))
        return UnderWay(self._slice(fingerprint.backend, str(job)), since=at)

    def _slice(self, backend: str, name: str, *, scripted: Caught | None = None, seconds: float | None = None) -> Slice:
        seed = derive_seed(self._seed, "scripted", name)
        return Slice(
            backend=backend, kind=SliceKind.SCRIPTED, seed=seed, examples=0, scripted=scripted, seconds=seconds
        )


def _can_wait(finding: FindingFiled) -> bool:
    return finding.known is not None or bool(finding.cause)


def _caught(finding: FindingFiled) -> Caught:
    return Caught(
        fingerprint=finding.fingerprint,
        first=finding.case,
        case=finding.case,
        observation=finding.observation,
        verdict=Verdict(observations=(finding.observation, *finding.others)),
        needs=finding.needs,
        ablated=finding.ablated,
        cause=finding.cause,
        recurrence=finding.recurrence,
    )
