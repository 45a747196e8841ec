"""Answers of the core's commands as `--json` writes them; the site's page of answers is generated from these types.

Paths are as a user would type them, times are seconds since the epoch, and durations are seconds.
"""

from typing import Self

import msgspec


class Listed(msgspec.Struct, frozen=True):
    """An answer, or a part of one, with some of a record's attributes as its fields."""

    @classmethod
    def of(cls, record: object) -> Self:
        """Return the fields that `record` has as attributes, in records within it too."""
        return msgspec.convert(record, cls, from_attributes=True)


class ListedFailure(Listed, frozen=True, kw_only=True):
    """A failure of a step: `margin` is error over bound, above 1 fails; null for an exact check. `step` -1: unknown."""

    kind: str
    place: str
    message: str
    step: int
    mode: str
    kernel: str
    tier: str
    margin: float | None


class FailedPlainly(msgspec.Struct, frozen=True, kw_only=True):
    """Plain cases that fail in one way, by their ids, and the failure of the first."""

    cases: tuple[str, ...]
    failure: ListedFailure


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The plain cases of a backend: how many were judged, and how many `failed`."""

    backend: str
    cases: int
    failed: int
    failures: tuple[FailedPlainly, ...]


class ExaminedRow(Listed, frozen=True, kw_only=True):
    """A measurement: `outcome` is "ok", "FAILS", "-" if it was not measured, and empty for information."""

    title: str
    result: str
    outcome: str


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of an examination of this machine, in the order of their measurement."""

    rows: tuple[ExaminedRow, ...]


class CampaignBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend in a campaign. `coverage` is the share of reachable pairs of features, null where it is unknown.

    `cases` were drawn and judged; `runs` also has those of earlier cases, and to minimize and confirm. `unsupported`
    cases were not judged.
    """

    name: str
    cases: int
    runs: int
    unsupported: int
    deaths: int
    coverage: float | None
    findings: int
    known: int


class CampaignCause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause: its state, or "known"; the features that it needs; the failure of its smallest case; all its findings.

    `fault` is "caller", "kernel" or "unclear", null if it was not triaged. `heading` is the name of the first cause
    that is probably the same bug, its own name if there is none.

    `finding` is the folder of the smallest case, `reproducers` are lines to paste into a shell.
    """

    name: str
    state: str
    known: str | None
    title: str
    fault: str | None
    needs: tuple[str, ...]
    heading: str
    backends: tuple[str, ...]
    failure: ListedFailure
    finding: str
    findings: tuple[str, ...]
    reproducers: tuple[str, ...]


class CampaignAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign: `result` in a line. `clean`: cases were judged, and the ledger lists all that failed.

    `cases` were drawn and judged; `runs` also has those of earlier cases, and to minimize and confirm.
    `failed` is the error of the harness itself, if it failed. `known_failures` counts failures that were known after
    one run without a feature, and are no findings. `ledger` has the remarks on its entries, `left_out` the calls that
    `--promised` left out of each backend, and `reports` the files that were written.
    """

    campaign: str
    result: str
    clean: bool
    finished: bool
    interrupted: bool
    failed: str | None
    seed: int | None
    seconds: float
    cases: int
    runs: int
    deaths: int
    backends: tuple[CampaignBackend, ...]
    causes: tuple[CampaignCause, ...]
    unconfirmed: tuple[str, ...]
    known_failures: int
    ledger: tuple[str, ...]
    left_out: dict[str, tuple[str, ...]]
    reports: tuple[str, ...]


class Differences(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two campaigns: causes by name, and caveats that limit the comparison."""

    before: str
    after: str
    caveats: tuple[str, ...]
    appeared: tuple[str, ...]
    fixed: tuple[str, ...]
    not_seen_again: tuple[str, ...]
    still_there: tuple[str, ...]
    runs_per_second: tuple[float, float]


class ReplayAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of a case. `failures` are those of the first run that failed.

    `conclusive` is false if a failure that comes and goes could have been missed in so few runs.
    """

    path: str
    backend: str
    fails: bool
    runs: int
    failed: int
    conclusive: bool
    failures: tuple[ListedFailure, ...]


class Smaller(msgspec.Struct, frozen=True, kw_only=True):
    """The smaller case: its file and failure, null if the case passes. `steady`: it fails in a fresh worker too."""

    path: str
    backend: str
    fails: bool
    case: str | None
    failure: ListedFailure | None
    runs: int | None
    steady: bool | None


class ListedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding on file. `cause` is the name of the finding that represents its cause: its own name if it does.

    `heading` is the name of the first cause that is probably the same bug, that of its own cause if there is none.
    """

    name: str
    path: str
    state: str
    cause: str
    heading: str
    needs: tuple[str, ...]
    backend: str
    failure: ListedFailure
    first_seen: float
    last_seen: float


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a home, by cause."""

    findings: tuple[ListedFinding, ...]


class FindingInCampaign(Listed, frozen=True, kw_only=True):
    """The result of a finding's case in one campaign."""

    campaign: str
    time: float
    failed: bool
    environment: dict[str, str]


class ShownFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding, its campaigns from first to last, and its report."""

    finding: ListedFinding
    campaigns: tuple[FindingInCampaign, ...]
    report: str | None


class CorpusCase(msgspec.Struct, frozen=True, kw_only=True):
    """A case of a corpus, the reason why it is kept, and its largest margin in each tier."""

    case: str
    path: str
    backend: str
    kept_for: str
    margins: dict[str, float]


class CorpusCases(msgspec.Struct, frozen=True, kw_only=True):
    """Cases of a corpus, in the order in which they are run."""

    cases: tuple[CorpusCase, ...]


class CorpusChange(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of cases: `changed` were added or dropped (or would be, with --dry-run) of those that were looked at."""

    changed: int
    of: int
    dry_run: bool = False


class ListedBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend. `not_here` says why it can't run on this machine, null if it can."""

    name: str
    device: str
    not_here: str | None
    supports: str


class Backends(msgspec.Struct, frozen=True, kw_only=True):
    """Backends."""

    backends: tuple[ListedBackend, ...]


class ListedMargins(msgspec.Struct, frozen=True, kw_only=True):
    """The largest margin of each tier among the rows of a backend's campaigns. `noise` gave the bounds.

    `date` and `versions` are those of the measurement, `architecture` and `machine` its GPU or CPU. It was `shipped`
    with attnfuzz, or is the home's.
    """

    backend: str
    dtype: str
    rows: int
    margins: dict[str, float]
    noise: str
    architecture: str
    machine: str
    date: str
    versions: dict[str, str]
    shipped: bool


class BackendMargins(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded margins, and the listed backends that run here and have none."""

    margins: tuple[ListedMargins, ...]
    without: tuple[str, ...]
