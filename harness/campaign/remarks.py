"""What a campaign says of the ledger at its end: entries that no failure matches any more."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.ledger import Entry, Ledger
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.state import State

NO_LONGER = "no longer happens: remove it from the ledger"
NOT_MET = "no finding matched this entry: it may be rare, fixed, or mistyped"


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """A remark on entry number `entry` of the ledger, counted from 1."""

    entry: int
    title: str
    text: str


def remarks_on(ledger: Ledger, standing: Standing, past: Sequence[Record]) -> list[Remark]:
    """Return the remarks at the end of a campaign that began with the findings `past`.

    An entry all of whose failures pass now should be removed. One that matched no failure, now or ever, may be of a
    rare failure. Entries of backends that were not searched are skipped.
    """
    searched = set(standing.started.backends) if standing.started else set()
    chosen = ((number, entry) for number, entry in enumerate(ledger.entries, 1) if entry.backend in searched)
    remarks = (_remark(number, entry, standing, past) for number, entry in chosen)
    return [remark for remark in remarks if remark is not None]


def _remark(number: int, entry: Entry, standing: Standing, past: Sequence[Record]) -> Remark | None:
    def matched(failures: Iterable[Any]) -> set[str | None]:
        named = ((failure, getattr(failure, "name", None)) for failure in failures)
        return {name for failure, name in named if entry.matches(failure.fingerprint, failure.case, name)}

    if matched([*standing.findings, *standing.unconfirmed]):
        return None
    fixed = matched(standing.fixed)
    before = matched(past)
    if before - fixed - matched(record for record in past if record.state is State.FIXED):
        # It failed the last time that it was run, and this campaign did not run it.
        return None
    return Remark(entry=number, title=entry.title, text=NO_LONGER if fixed or before else NOT_MET)
