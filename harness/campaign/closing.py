"""Remarks at the end of a campaign: undone tasks, backends without a judged case, and unmatched ledger entries."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from attnfuzz.harness.campaign.events import LedgerRemark
from attnfuzz.harness.campaign.replays import Replays
from attnfuzz.harness.campaign.schedule import Schedule, missing
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.campaign.under_way import UnderWay
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.search.messages import Recognized, SliceDone, SliceKind
from attnfuzz.harness.verdict.wording import clock, count


class Undone:
    """Tracks which cases of `replays` are run, and reports the others at the end."""

    def __init__(self, replays: Replays) -> None:
        self._replays = replays
        self._findings = set(replays.findings_left)
        self._kept = 0

    def checked(self, finding: str) -> None:
        """Record that a finding's case was run again."""
        self._findings.discard(finding)

    def ended(self, run: UnderWay, done: SliceDone) -> None:
        """Record the end of a slice, and its cases that were not run."""
        if run.task.kind is SliceKind.KEPT:
            self._kept += sum(replay.finding is None for replay in run.task.replays[done.replayed :])

    def lines(self, schedule: Schedule) -> Iterator[str]:
        """Yield lines on undone tasks. New cases that were not kept are none: a later campaign draws others."""
        kept = self._kept + self._replays.kept_left
        if self._findings:
            yield f"no time was left to run {count(len(self._findings), 'past finding')}"
        if kept:
            yield f"no time was left to run {count(kept, 'kept case')}"
        for backend, (used, due) in schedule.short().items():
            yield f"{backend} was searched for {clock(used)}, less than its minimum share of {clock(due)}"


def unjudged(standing: Standing) -> Iterator[str]:
    """Yield a line on each backend that supports none of its cases, or too few for the examples that were asked for."""
    examples = None if standing.started is None else standing.started.examples
    for backend, score in standing.scores.items():
        tally = score.tally
        short = (
            examples is not None
            and tally.searched < examples
            and not missing(examples, tally.searched, tally.unsupported)
        )
        if short and tally.searched:
            drawn = tally.searched + tally.unsupported
            yield f"{backend} supports {tally.searched:,} of {count(drawn, 'drawn case')}: {score.usual_refusal}"
        if score.unsupported and not score.tally.cases:
            cases, others = score.unsupported.total(), len(score.unsupported) - 1
            beside = f", and {count(others, 'other reason')}" if others else ""
            yield f"{backend} supports none of {count(cases, 'case')}: {score.usual_refusal}{beside}"


NO_LONGER = "its findings pass now: remove it from the ledger"
NO_MATCH = "no finding matched this entry: it may be rare, fixed, or mistyped"


def remarks_on(ledger: Ledger, standing: Standing, past: Sequence[Record]) -> list[LedgerRemark]:
    """Return the remarks at the end of a campaign that began with the findings `past`.

    An entry should be removed if all of its failures pass now. One that has never matched a failure may be for a rare
    one. One most of whose failures do not need its features should be narrowed. Entries of backends that were not
    searched are skipped.
    """
    recognized = standing.recognized
    searched = set(standing.started.backends) if standing.started else set()
    chosen = ((number, each) for number, each in enumerate(ledger.entries, 1) if searched.intersection(each.backends))
    remarks = (
        (number, entry.title, _of_recognized(counts) or _remark(entry, standing, past))
        for number, entry in chosen
        for counts in (recognized.get(number, Recognized()),)
    )
    return [
        LedgerRemark(at=standing.at, entry=number, title=title, text=text) for number, title, text in remarks if text
    ]


def _of_recognized(counts: Recognized) -> str:
    """Return the counts of an entry that matched failures of drawn cases, and whether it should be narrowed.

    A right entry also matches failures of another bug with the same fingerprint, in cases that happen to have its
    features. The search goes on with these without its features, so they are not hidden. Only if they are the majority
    does the entry describe its failure wrongly.
    """
    seen = [f"{count(counts.passed, 'failure')} passed without its features"] if counts.passed else []
    seen += [f"{count(counts.beneath, 'failure')} also occurred without its features"] if counts.beneath else []
    seen += [f"{count(counts.refused, 'failure')} could not be run without its features"] if counts.refused else []
    if counts.elsewhere:
        seen.append(f"{counts.elsewhere:,} of {counts.agreed + counts.elsewhere:,} minimized had another cause")
    wide = counts.beneath > max(1, counts.passed) or counts.elsewhere > max(1, counts.agreed)
    return "; ".join((*seen, *(["most do not need its features: narrow it"] if wide else [])))


def _remark(entry: Entry, standing: Standing, past: Sequence[Record]) -> str | None:
    def matched(failures: Iterable[Any]) -> set[str | None]:
        named = ((failure, getattr(failure, "name", None)) for failure in failures)
        return {name for failure, name in named if entry.matches(failure.fingerprint, failure.case, name)}

    if matched([*standing.findings, *standing.unconfirmed]):
        return None
    fixed = matched(standing.fixed)
    before = matched(past)
    if before - fixed - matched(record for record in past if record.state is State.FIXED):
        # It failed when it was last run, which was not in this campaign.
        return None
    return NO_LONGER if fixed or before else NO_MATCH
