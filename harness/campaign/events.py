"""The events of a campaign, from which all outputs (terminal, log, report) are derived.

The events make up the log, one JSON object per line; `LOG_VERSION` versions their fields.
"""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from attnfuzz.harness.campaign.plan import LEAST_ALPHA, MOST_BACKENDS, MOST_EXAMPLES, MOST_JOBS, MOST_SEED
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.messages import Count, Seconds, SliceKind, Tally
from attnfuzz.harness.verdict.blame import Blamed
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Guard
from attnfuzz.strategies.coverage import Pair

LOG_VERSION = 3

# Bounds on values in a log, which steers a resumed campaign, and may be damaged or hostile.
Moment = Annotated[float, Meta(ge=0, le=1e11)]  # seconds since the epoch, in years of four digits
Index = Annotated[int, Meta(ge=0, le=1 << 53)]
Name = Annotated[str, Meta(min_length=1, max_length=4096)]
Job = Annotated[int, Meta(ge=0, lt=MOST_JOBS)]
JobCount = Annotated[int, Meta(ge=1, le=MOST_JOBS)]
Seed = Annotated[int, Meta(ge=0)]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """An event of a campaign, `at` seconds after its start.

    `at` never decreases, and continues when a campaign is resumed: it counts the time spent searching.
    """

    at: Seconds


class LoggedCapability(msgspec.Struct, frozen=True):
    """The capability of a backend of another family than attention, named by the tag of its cases."""

    kind: str
    fields: dict[str, Any]


class CampaignStarted(Event, frozen=True, kw_only=True, tag=True):
    """The first event. `examples` is per backend; either it or `seconds` is the budget.

    `campaign` names the campaign in its home, `time` is in seconds since the epoch. `environment` has the relevant
    versions (torch, flashinfer, gpu, driver, ...). `alpha` is the number of false positives expected of correct
    backends, before confirmation. `capabilities` has the capability of each of the `backends`, `other_capabilities`
    those of other families than attention: reading a log must not load them. With `promised`, calls that the API does
    not mention are not drawn: `left_out` has the words for these forms of arguments, edges and earlier uses of each
    backend that has some. `modes` and `dtypes` are the only ones that are drawn, if there are some; each case has the
    features `only`, and none of `never`. `folder` is where the campaign was started, because a backend's file may have
    a relative name.
    """

    log_version: int = LOG_VERSION
    campaign: Name
    time: Moment
    attnfuzz: str
    environment: dict[str, str]
    backends: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MOST_BACKENDS)]
    capabilities: dict[str, Capability] = {}
    other_capabilities: dict[str, LoggedCapability] = {}
    preset: str
    examples: Annotated[int, Meta(ge=1, le=MOST_EXAMPLES)] | None
    seconds: Seconds | None
    seed: Annotated[int, Meta(ge=0, le=MOST_SEED)]
    jobs: JobCount
    contract: Annotated[str, Meta(pattern=r"\A(declared|strict)\Z")]
    alpha: Annotated[float, Meta(ge=LEAST_ALPHA, lt=1)]
    guard: Guard | None = None
    until_finding: bool = False
    promised: bool = False
    modes: tuple[Name, ...] = ()
    dtypes: tuple[Name, ...] = ()
    only: tuple[Name, ...] = ()
    never: tuple[Name, ...] = ()
    left_out: dict[Name, tuple[str, ...]] = {}
    without: tuple[Tier, ...] = ()
    trial: Seconds | None = None
    sanitize: bool = False
    ledger: Name | None = None
    folder: Name | None = None


class CampaignResumed(Event, frozen=True, kw_only=True, tag=True):
    """The campaign resumes after its main process ended early. `torn_bytes` of a half-written event were cut off."""

    time: Moment
    environment: dict[str, str]
    jobs: JobCount
    torn_bytes: Count


class SliceStarted(Event, frozen=True, kw_only=True, tag=True):
    """A job got a slice of `examples` to draw, or of cases to run again. `index` counts drawing slices."""

    job: Job
    backend: Name
    kind: SliceKind = SliceKind.DRAWN
    index: Index | None = None
    seed: Seed
    examples: Count


class Progress(Event, frozen=True, kw_only=True, tag=True):
    """Runs on `backend` since its last progress, over all jobs; at most one event a second."""

    backend: Name
    tally: Tally


class CoverageGrew(Event, frozen=True, kw_only=True, tag=True):
    """`pairs` of features were reached for the first time in this campaign, after `searched` examples of `backend`."""

    backend: Name
    searched: Count
    pairs: tuple[Pair, ...]


class CaseKept(Event, frozen=True, kw_only=True, tag=True):
    """A case was added to the corpus, because of `why`."""

    backend: Name
    case_id: str
    why: str


class FailureEvent(Event, frozen=True, kw_only=True):
    """An event about a failure: `case` failed with `observation`."""

    fingerprint: Fingerprint
    case: AnyCase
    observation: Observation


class SuspectSeen(FailureEvent, frozen=True, kw_only=True, tag=True):
    """A case failed in a way that is not on file yet. It is confirmed and shrunk now, or waits if `left_over`."""

    left_over: bool = False


class FindingFiled(FailureEvent, frozen=True, kw_only=True, tag=True):
    """A failure was confirmed, shrunk and filed in the folder `path`. `report` describes it for people.

    `name` identifies the finding; `fingerprint` was taken before shrinking. `needs` are the names of needed features
    (`attnfuzz.harness.reduce.ablation.FEATURES`); if the finding is not `ablated`, some needs may be missing, and the
    finding may be replaced later, with its folder (FindingMinimized). `cause` names the finding that represents its
    cause, or is "" if this one does. `known` is the ledger's reason, if any. `state` is NEW, or RETURNED if it was
    fixed in an earlier campaign. `recurrence` is set if the failure does not always come back. `others` are the other
    failures of the case.
    """

    name: str
    path: str
    report: str
    needs: tuple[str, ...] = ()
    ablated: bool = True
    cause: str = ""
    state: State = State.NEW
    known: str | None = None
    recurrence: Recurrence | None = None
    others: tuple[Observation, ...] = ()


class ScriptMade(Event, frozen=True, kw_only=True, tag=True):
    """The script of the finding `name` was run without attnfuzz.

    `obstacle` is the reason why it is not known to show the failure, or why there is none; "" if it showed it. `kept`
    says whether the finding's folder has it.
    """

    name: str
    kept: bool
    obstacle: str = ""


class AlreadyFiled(Event, frozen=True, kw_only=True, tag=True):
    """A failure was confirmed and shrunk, and turned out to be the finding `name`, which this campaign knows."""

    fingerprint: Fingerprint
    name: str


class FindingChecked(FailureEvent, frozen=True, kw_only=True, tag=True):
    """A finding of an earlier campaign was run again. `state` is OPEN, RETURNED (it had been fixed) or FIXED.

    It failed `times` out of `runs`. `case` is the smallest on file. `needs`, `ablated`, `cause` and `recurrence` are as
    in FindingFiled.
    """

    name: str
    path: str
    needs: tuple[str, ...] = ()
    ablated: bool = True
    cause: str = ""
    state: State
    runs: Count = 1
    times: Count = 0
    known: str | None = None
    recurrence: Recurrence | None = None


class FindingMinimized(Event, frozen=True, kw_only=True, tag=True):
    """The finding `name`, whose needs were unknown, was shrunk again and is replaced by `finding`."""

    name: str
    finding: FindingFiled


class FindingTriaged(Event, frozen=True, kw_only=True, tag=True):
    """The failure of the finding `name` is the fault of `blame`, by its calls."""

    name: str
    blame: Blamed


class CausesMerged(Event, frozen=True, kw_only=True, tag=True):
    """Verified predictions of the cause of `cause` explain the finding `name` and its whole cause.

    `known` is the ledger's reason for the finding `cause`, if it has one.
    """

    name: str
    cause: str
    known: str | None = None


class UnconfirmedKept(FailureEvent, frozen=True, kw_only=True, tag=True):
    """A failure that is not a finding, because of `reason`, was kept in the folder `path`.

    `known` is the ledger's reason, if it has one.
    """

    path: str
    reason: str
    known: str | None = None


class GapSeen(FailureEvent, frozen=True, kw_only=True, tag=True):
    """A case broke only the strict contract. Emitted once per fingerprint."""


class SliceFinished(Event, frozen=True, kw_only=True, tag=True):
    """A slice of the search ended. `unsupported` counts the cases that the backend rejected, by message."""

    backend: Name
    kind: SliceKind = SliceKind.DRAWN
    index: Index | None = None
    seed: Seed
    examples: Count
    cases: Count
    deaths: Count
    seconds: Seconds
    unsupported: dict[str, Count]


class LedgerRemark(Event, frozen=True, kw_only=True, tag=True):
    """At the end: entry number `entry` (from 1) of the ledger no longer happens, or never matched."""

    entry: Count
    title: str
    text: str


class Trouble(Event, frozen=True, kw_only=True, tag=True):
    """Something other than the tested code failed, such as reading a past finding. The campaign goes on without it."""

    text: str


class JobReady(Event, frozen=True, kw_only=True, tag=True):
    """A job has a worker for its first case."""

    job: Job


class CaseAwaited(Event, frozen=True, kw_only=True, tag=True):
    """A job has waited `seconds` for a case, which may hang. Repeated, until the case or the job is `over`."""

    job: Job
    seconds: Seconds
    over: bool = False


class JobRestarted(Event, frozen=True, kw_only=True, tag=True):
    """A job process was killed from outside and restarted. `text` describes how."""

    job: Job
    text: str


class JobFailed(Event, frozen=True, kw_only=True, tag=True):
    """A job process exited by itself, and the campaign ends. `text` is its standard error: the harness is broken.

    `fixable`: the reason is outside of the harness, such as a GPU that does not answer, and `text` says it in one line.
    """

    job: Job
    text: str
    fixable: bool = False


class CampaignFinished(Event, frozen=True, kw_only=True, tag=True):
    """The last event. `interrupted` is set if the user stopped the campaign."""

    time: Moment
    interrupted: bool


AnyEvent = (
    CampaignStarted
    | CampaignResumed
    | SliceStarted
    | Progress
    | CoverageGrew
    | CaseKept
    | SuspectSeen
    | FindingFiled
    | ScriptMade
    | AlreadyFiled
    | FindingChecked
    | FindingMinimized
    | FindingTriaged
    | CausesMerged
    | UnconfirmedKept
    | GapSeen
    | SliceFinished
    | LedgerRemark
    | Trouble
    | JobReady
    | CaseAwaited
    | JobRestarted
    | JobFailed
    | CampaignFinished
)

AnyFinding = FindingFiled | FindingChecked

Handler = Callable[[Event], None]
