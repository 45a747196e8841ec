"""What a sweep has found out so far, as a file: its table, and all that it takes to go on."""

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
from attnfuzz.reference.foreign import decode_json, read_bytes, reason
from attnfuzz.reference.user_error import UserError
from attnfuzz.reference.validity import ImpossibleCase, validate

RESULTS = "sweep.json"


class SweepError(UserError):
    """A folder without a sweep in it, or with a damaged one; the message says what to do."""


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a user asks of a sweep: `releases` in their order, each searched for `examples` per kind or for `seconds`.

    Neither of both: nothing is searched. `given` are the cases named beside the reports.
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
        """Whether releases are searched, beside the known failures that are run in them."""
        return self.examples is not None or self.seconds is not None


class Searched(msgspec.Struct, frozen=True, kw_only=True):
    """What a release's search came to: drawn examples, judged cases, and the campaign's name in the sweep's home.

    `interrupted` is what a user or a signal ended, `failure` what the harness failed with.
    """

    examples: Count
    cases: Count
    campaign: str
    interrupted: bool = False
    failure: str = ""

    @property
    def complete(self) -> bool:
        """Whether a sweep that goes on need not search again."""
        return not self.interrupted and not self.failure


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A failure in a release. If it fails, `case` is a file, and `fingerprint` how it fails, without a backend."""

    ending: Ending
    line: str = ""
    case: str = ""
    fingerprint: Fingerprint | None = None

    @property
    def outcome(self) -> Outcome:
        """As what a course and a sentence are made of."""
        return Outcome(self.ending, self.line)


class FailureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A failure, and what came of it by release; those that it was not run in yet are left out.

    `resembles` names the row of a report that fails in the same way in the same releases: perhaps it is that.
    """

    wanted: Wanted
    cells: dict[str, Cell] = {}
    resembles: str = ""

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """The outcomes by release."""
        return {release: cell.outcome for release, cell in self.cells.items()}

    @property
    def course(self) -> Course:
        """When it began and ended."""
        return course_of(self.outcomes)


class SweepResults(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `searched` is by release, `unable` says by backend why it could not be run."""

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
        return any(cell.outcome.judged for row in self.rows for cell in row.cells.values()) or any(
            each.cases for each in self.searched.values()
        )

    @property
    def fails(self) -> bool:
        """Whether any release fails."""
        return any(cell.ending is Ending.FAILS for row in self.rows for cell in row.cells.values())


def write_results(folder: Path, results: SweepResults) -> None:
    """Write them to the folder in one move. Raises OSError."""
    write_durably(folder / RESULTS, msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")


def read_results(folder: Path) -> SweepResults:
    """What a sweep has left in its folder. Raises SweepError."""
    path = folder / RESULTS
    try:
        results = decode_json(read_bytes(path), SweepResults)
        for wanted in (*results.asked.given, *(row.wanted for row in results.rows)):
            validate(wanted.case)
    except OSError as error:
        raise SweepError(f"cannot read {path}: {error.strerror}. Name the --home of a sweep") from None
    except (msgspec.DecodeError, ImpossibleCase) as error:
        raise SweepError(f"{path} is no sweep of this attnfuzz ({reason(error)}): begin another") from None
    return results


def with_resemblances(rows: Sequence[FailureRow]) -> tuple[FailureRow, ...]:
    """The rows, each but the reports with the report that it resembles, if there is one."""
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
    """Whether both fail in the same way wherever both were judged, and somewhere at all."""
    both = [
        (cell, report.cells[release])
        for release, cell in row.cells.items()
        if cell.outcome.judged and release in report.cells and report.cells[release].outcome.judged
    ]
    same = all((a.ending, a.fingerprint) == (b.ending, b.fingerprint) for a, b in both)
    return row.wanted.kind == report.wanted.kind and same and any(cell.ending is Ending.FAILS for cell, _ in both)
