"""A sweep's results so far, as a file: its table, and the state to resume from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from attnfuzz.harness.campaign.events import JobCount
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.releases.outcomes import Course, Ending, Outcome, course_of
from attnfuzz.harness.releases.wanted import Wanted
from attnfuzz.harness.search.messages import Count, Seconds
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case_types import decode_any
from attnfuzz.reference.foreign import decode_json, read_bytes, reason
from attnfuzz.reference.user_error import UserError
from attnfuzz.reference.validity import ImpossibleCase

RESULTS = "sweep.json"


class SweepError(UserError):
    """A folder has no sweep, or a damaged one; the message has the remedy."""


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a sweep: `releases` in order, each searched for `examples` per kind or for `seconds`.

    With neither, nothing is searched. `given` are the cases named beside the reports.
    """

    package: str
    releases: tuple[str, ...]
    kinds: tuple[str, ...]
    examples: Count | None
    seconds: Seconds | None
    seed: int
    jobs: JobCount
    given: tuple[Wanted, ...] = ()

    @property
    def searches(self) -> bool:
        """Whether releases are searched, beyond running the known failures."""
        return self.examples is not None or self.seconds is not None


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """A release's search: drawn examples, judged cases, and the campaign's name in the sweep's home.

    `refused` counts the drawn cases that were not run, by reason. `interrupted`: ended by a user or a signal. `failure`
    is the harness's error.
    """

    examples: Count
    cases: Count
    campaign: str
    refused: dict[str, Count] = {}
    interrupted: bool = False
    failure: str = ""

    @property
    def complete(self) -> bool:
        """Whether a resumed sweep need not search again."""
        return not self.interrupted and not self.failure


class Cell(Outcome, frozen=True, kw_only=True):
    """A failure in a release. If it fails, `case` is a file, and `fingerprint` the failure's, without a backend."""

    case: str = ""
    fingerprint: Fingerprint | None = None


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A failure and its results by release, without releases it was not run in yet.

    `resembles` names the row of a report that fails alike in the same releases: perhaps the same failure.
    """

    wanted: Wanted
    cells: dict[str, Cell] = {}
    resembles: str = ""

    @property
    def course(self) -> Course:
        """When it began and ended."""
        return course_of(self.cells)


class SweepResults(msgspec.Struct, frozen=True, kw_only=True):
    """All results. `searched` is by release, `unable` has the reason per backend that could not be run."""

    format: Literal["attnfuzz-sweep"] = "attnfuzz-sweep"
    version: Literal[1] = 1
    asked: SweepPlan
    environment: dict[str, str]
    searched: dict[str, Searched] = {}
    unable: dict[str, str] = {}
    rows: tuple[FailureRow, ...] = ()

    @property
    def judged(self) -> bool:
        """Whether any release could be run: there is an outcome, or a search."""
        return any(cell.judged for row in self.rows for cell in row.cells.values()) or any(
            each.cases for each in self.searched.values()
        )

    @property
    def fails(self) -> bool:
        """Whether any release fails."""
        return any(cell.ending is Ending.FAILS for row in self.rows for cell in row.cells.values())


def write_results(folder: Path, results: SweepResults) -> None:
    """Write them to the folder atomically. Raises OSError."""
    write_durably(folder / RESULTS, msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


_results = msgspec.json.Decoder(SweepResults, dec_hook=decode_any)


def read_results(folder: Path) -> SweepResults:
    """Read the results in a sweep's folder. Raises SweepError."""
    path = folder / RESULTS
    try:
        results = decode_json(read_bytes(path), _results)
        for wanted in (*results.asked.given, *(row.wanted for row in results.rows)):
            wanted.case.validate()
    except OSError as error:
        raise SweepError(f"cannot read {path}: {error.strerror}. Name the --home of a sweep") from None
    except (msgspec.DecodeError, ImpossibleCase) as error:
        raise SweepError(f"{path} is not a sweep of this attnfuzz ({reason(error)}): start another") from None
    return results


def with_resemblances(rows: Sequence[FailureRow]) -> tuple[FailureRow, ...]:
    """Set the report that each other row resembles, if any."""
    reports = [row for row in rows if row.wanted.reported]
    return tuple(
        row
        if row.wanted.reported
        else msgspec.structs.replace(
            row, resembles=next((report.wanted.name for report in reports if _resembles(row, report)), "")
        )
        for row in rows
    )


def _resembles(row: FailureRow, report: FailureRow) -> bool:
    """Return whether both fail in the same way wherever both were judged, and at least once."""
    both = [
        (cell, report.cells[release])
        for release, cell in row.cells.items()
        if cell.judged and release in report.cells and report.cells[release].judged
    ]
    same = all((a.ending, a.fingerprint) == (b.ending, b.fingerprint) for a, b in both)
    return row.wanted.kind == report.wanted.kind and same and any(cell.ending is Ending.FAILS for cell, _ in both)
