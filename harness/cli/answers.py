"""Answers of commands as `--json` writes them; the site's page of answers is generated from these types.

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


class ServerFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of failures of a server: its state, or "known"; the features that it needs, and its number of requests.

    `symptoms` counts the failures that it explains, by kind and place.
    """

    name: str
    state: str
    known: str | None
    kind: str
    message: str
    needs: tuple[str, ...]
    symptoms: dict[str, int]
    requests: int | None
    path: str


class ServeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign against a server. `busy` is the share of the time with a running request.

    `floor` is the difference of log-probabilities that was allowed, null if the server was never asked. `ended` is the
    reason why the campaign ended before its time, or empty.
    """

    campaign: str
    result: str
    clean: bool
    interrupted: bool
    ended: str
    server: str | None
    floor: float | None
    seed: int | None
    seconds: float
    traces: int
    requests: int
    tokens: int
    busy: float
    restarts: int
    findings: tuple[ServerFinding, ...]
    unconfirmed: tuple[str, ...]
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


class DumpedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a dump, with its number. `breaches` are the preconditions that it breaks, null where unknown."""

    call: int
    function: str
    status: str
    breaches: tuple[str, ...] | None


class DumpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a dump."""

    calls: tuple[DumpedCall, ...]


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """A case that was made of dumped calls; `call` is the number of the last of them."""

    case: str
    call: int
    calls: int
    buffers: int
    bytes: int
    notes: tuple[str, ...]
    breaches: tuple[str, ...]


class BisectedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome with a version: "not run", or one of the endings of a run. `seen` is the line that it ended with."""

    version: str
    outcome: str
    seen: str


class Bisected(msgspec.Struct, frozen=True, kw_only=True):
    """The versions, the oldest first, and the conclusion in words."""

    package: str
    versions: tuple[BisectedVersion, ...]
    conclusion: str


class SweptRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A release in a sweep: the cases that its search drew, null if it was not searched.

    `unable` has, by backend, the reasons why it could not be run.
    """

    release: str
    drawn: int | None
    unable: dict[str, str]


class SweptFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A failure in a sweep: its outcome by release, as far as it was run.

    `began` and `ended` are releases, or words: "-" if no release fails, "by" and the oldest release, "still there".
    `cases` are the files of the failing cases, by release.
    """

    name: str
    title: str
    backend: str
    outcomes: dict[str, str]
    began: str
    ended: str
    found_in: tuple[str, ...]
    cases: dict[str, str]


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """The releases of an engine, and the failures that were run in them."""

    engine: str
    interrupted: bool
    releases: tuple[SweptRelease, ...]
    failures: tuple[SweptFailure, ...]


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


class ServerFindings(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of a home of attnfuzz serve."""

    findings: tuple[ServerFinding, ...]


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


class ShownServerFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of a server, its campaigns from first to last, and its report."""

    finding: ServerFinding
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


class BuiltModule(msgspec.Struct, frozen=True, kw_only=True):
    """A module: its library, or the reason why it can't be compiled. `seconds` is 0 if it was compiled before."""

    name: str
    library: str | None
    reason: str | None
    seconds: float


class Modules(msgspec.Struct, frozen=True, kw_only=True):
    """The modules that GPU backends need on these architectures.

    `left` are the pairs of compile-time features that a choice of modules leaves out.
    """

    arch: str
    modules: tuple[BuiltModule, ...]
    left: tuple[tuple[str, str], ...] = ()


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
