"""What a campaign had no time for."""

from collections.abc import Iterator

from attnfuzz.harness.campaign.replays import Replays
from attnfuzz.harness.campaign.schedule import Schedule
from attnfuzz.harness.campaign.under_way import UnderWay
from attnfuzz.harness.search.messages import Replay, SliceDone, SliceKind
from attnfuzz.harness.verdict.wording import clock, count


class Undone:
    """Follows which cases of `replays` are run, and says at the end which are not."""

    def __init__(self, replays: Replays) -> None:
        self._replays = replays
        self._findings = set(replays.findings_left)
        self._kept = 0

    def checked(self, finding: str) -> None:
        """Note that the case of a finding was run again."""
        self._findings.discard(finding)

    def ended(self, run: UnderWay, done: SliceDone) -> None:
        """Note a slice that ended: how many of its cases it came to."""
        if run.task.kind is SliceKind.KEPT:
            self._kept += sum(_is_kept(replay) for replay in run.task.replays[done.replayed :])

    def lines(self, schedule: Schedule, unkept: int) -> Iterator[str]:
        """What was not done, a line each; `unkept` cases that reached something new were not kept."""
        kept = self._kept + self._replays.kept_left
        if self._findings:
            yield f"no time was left to run {count(len(self._findings), 'past finding')} again"
        if kept:
            yield f"no time was left to run {count(kept, 'kept case')} again"
        for backend, (used, due) in schedule.short().items():
            yield f"{backend} was searched for {clock(used)}: {clock(due)} are the least that each backend should have"
        if unkept:
            yield f"no time was left to keep {count(unkept, 'case')} that reached something new"


def _is_kept(replay: Replay) -> bool:
    return replay.finding is None
