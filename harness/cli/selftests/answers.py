"""Answers of tests of attnfuzz itself, as `--json` writes them."""

import msgspec

from attnfuzz.harness.cli.answers import Listed, ListedFailure


class ListedBug(Listed, frozen=True, kw_only=True):
    """A reported bug. `not_here` says why it can't be shown on this machine, null if it can."""

    name: str
    title: str
    project: str
    bug_class: str
    shown_by: str
    release: str
    affected: str
    fixed_in: str
    sources: tuple[str, ...]
    symptom: str
    missing: str | None = msgspec.field(name="not_here")


class Bugs(msgspec.Struct, frozen=True, kw_only=True):
    """Reported bugs."""

    bugs: tuple[ListedBug, ...]


class BugResult(Listed, frozen=True, kw_only=True):
    """A bug before and after its fix: `shown` if it fails as reported and passes after the fix.

    `after` is null if there is no backend without the bug. `unsupported` is the reason why a case could not be run.
    """

    name: str
    backend: str
    shown: bool
    before: tuple[ListedFailure, ...]
    after: tuple[ListedFailure, ...] | None
    unsupported: str | None
    remark: str


class BugResults(msgspec.Struct, frozen=True, kw_only=True):
    """The bugs that were run, and the names of those that can't be run here."""

    bugs: tuple[BugResult, ...]
    not_here: tuple[str, ...]


class ListedDefect(Listed, frozen=True, kw_only=True):
    """A planted defect."""

    name: str
    title: str
    layer: str
    bug_class: str
    source: str


class Defects(msgspec.Struct, frozen=True, kw_only=True):
    """The planted defects."""

    defects: tuple[ListedDefect, ...]


class CalibrationAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A calibration's file. `margins` has the largest margin of each tier among held-out rows, by dtype of queries."""

    backend: str
    architecture: str
    path: str
    rows: dict[str, int]
    margins: dict[str, dict[str, float]]


class Calibrations(msgspec.Struct, frozen=True, kw_only=True):
    """The calibrations that were written."""

    calibrations: tuple[CalibrationAnswer, ...]


class MutantAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A mutant: a change of `source`, in a line of a file (FILE:LINE), and its fate.

    If it fails, `kind` and `place` are those of its failure, which the drawn case `examples` (from 1) shows. `ran`
    cases ran, of which the plans of `changed` ones differ.
    """

    at: str
    source: str
    operator: str
    before: str
    after: str
    fate: str
    kind: str
    place: str
    examples: int
    ran: int
    changed: int
    seconds: float


class MutantsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The mutants that were run. `failing` of the `changing` ones fail: of those that fail or change some plan."""

    backend: str
    interrupted: bool
    cases: int
    possible: int
    failing: int
    changing: int
    mutants: tuple[MutantAnswer, ...]
