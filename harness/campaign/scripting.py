"""Scripts that no job has made: the time of its slice was over, it was killed, or the campaign was."""

from collections.abc import Collection

from attnfuzz.harness.campaign.events import Event, FindingFiled, FindingMinimized, ScriptMade
from attnfuzz.harness.campaign.under_way import UnderWay
from attnfuzz.harness.search.examples import derive_seed
from attnfuzz.harness.search.messages import Caught, Slice, SliceKind
from attnfuzz.harness.verdict.failures import Verdict

NOT_MADE = "the campaign ended before it was made"
JOB_KILLED = "its job was killed while it was made"

SECONDS_TO_HAND_OVER = 1.0
"""Time between the limit of a script and the end of the campaign, in which its result arrives."""


class Scripting:
    """Provides slices that make the scripts of this campaign's findings without one, new causes first.

    A handler of events. A resumed campaign makes those for which it had no time.
    """

    def __init__(self, *, seed: int) -> None:
        self._seed = seed
        self._waiting: dict[str, FindingFiled] = {}

    def __call__(self, event: Event) -> None:
        """Learn from `event`."""
        match event:
            case FindingFiled(name=name):
                self._waiting[name] = event
            case FindingMinimized(name=name, finding=finding):
                self._waiting.pop(name, None)
                self._waiting[finding.name] = finding
            case ScriptMade(name=name, obstacle=obstacle) if obstacle != NOT_MADE:
                self._waiting.pop(name, None)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The findings without a script, and without a reason for that."""
        return tuple(self._waiting)

    def next(self, at: float, ended: float, under_way: Collection[UnderWay]) -> UnderWay | None:
        """Return the next slice of a campaign that will have `ended`, or None if no script waits or no time is left."""
        seconds = ended - SECONDS_TO_HAND_OVER - at
        held = {name for run in under_way for name in run.unscripted.values()}
        free = [each for name, each in self._waiting.items() if name not in held]
        if not free or seconds <= 0:
            return None
        finding = min(free, key=lambda each: (each.known is not None, bool(each.cause)))
        task = Slice(
            backend=finding.case.backend,
            kind=SliceKind.SCRIPTED,
            seed=derive_seed(self._seed, "scripted", finding.name),
            examples=0,
            scripted=_caught(finding),
            seconds=seconds,
        )
        return UnderWay(task, since=at, unscripted={(finding.fingerprint, finding.case): finding.name})


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
