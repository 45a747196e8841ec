"""What a campaign tells the world: every output (terminal, log, report) is a handler of these events, and only that.

All of them make up the log, one JSON object per line; `LOG_VERSION` says which fields they have. What the version
before had, `upgrade` brings up to date.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from attnfuzz.harness.campaign.plan import LEAST_ALPHA, MOST_BACKENDS, MOST_EXAMPLES, MOST_JOBS, MOST_SEED
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.messages import Count, Seconds, SliceKind, Tally
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Guard
from attnfuzz.strategies.coverage import Pair

LOG_VERSION = 3

# What a log may say: a campaign that goes on is steered by it, and it may be damaged or somebody else's.
Moment = Annotated[float, Meta(ge=0, le=1e11)]  # seconds since the epoch, in years of four digits
Index = Annotated[int, Meta(ge=0, le=1 << 53)]
Name = Annotated[str, Meta(min_length=1, max_length=4096)]
Job = Annotated[int, Meta(ge=0, lt=MOST_JOBS)]
JobCount = Annotated[int, Meta(ge=1, le=MOST_JOBS)]
Seed = Annotated[int, Meta(ge=0)]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Something that happened in a campaign, `at` seconds after its start.

    `at` never decreases, and goes on where it was when a campaign is resumed: it counts the time spent searching.
    """

    at: Seconds


class CampaignStarted(Event, frozen=True, kw_only=True, tag=True):
    """The first event. `examples` is per backend; either it or `seconds` is the budget.

    `campaign` names the campaign in its home, `time` is in seconds since the epoch. `environment` has the versions that
    matter (torch, flashinfer, gpu, driver, ...). `alpha` is the number of false alarms expected of correct backends,
    before confirmation. `capabilities` are those of `backends`: who reads a log must not have to load what it names.
    `folder` is where the campaign was begun: a backend's file may be named from there.
    """

    log_version: int = LOG_VERSION
    campaign: Name
    time: Moment
    attnfuzz: str
    environment: dict[str, str]
    backends: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MOST_BACKENDS)]
    capabilities: dict[str, Capability] = {}
    preset: str
    examples: Annotated[int, Meta(ge=1, le=MOST_EXAMPLES)] | None
    seconds: Seconds | None
    seed: Annotated[int, Meta(ge=0, le=MOST_SEED)]
    jobs: JobCount
    contract: Annotated[str, Meta(pattern=r"\A(declared|strict)\Z")]
    alpha: Annotated[float, Meta(ge=LEAST_ALPHA, lt=1)]
    guard: Guard | None = None
    leaning: bool = True
    until_finding: bool = False
    database: Name | None = None
    ledger: Name | None = None
    folder: Name | None = None


class CampaignResumed(Event, frozen=True, kw_only=True, tag=True):
    """The campaign goes on after its main process ended early. `torn_bytes` of a half-written event were cut off."""

    time: Moment
    environment: dict[str, str]
    jobs: JobCount
    torn_bytes: Count


class SliceStarted(Event, frozen=True, kw_only=True, tag=True):
    """A job was handed a slice of `examples` to draw, or of cases to run again. `index` counts the slices that draw."""

    job: Job
    backend: Name
    kind: SliceKind = SliceKind.DRAWN
    index: Index | None = None
    seed: Seed
    examples: Count


class Progress(Event, frozen=True, kw_only=True, tag=True):
    """What was run on `backend` since its last progress, over all jobs: at most one event a second."""

    backend: Name
    tally: Tally


class CoverageGrew(Event, frozen=True, kw_only=True, tag=True):
    """`pairs` of features were reached for the first time in this campaign, after `searched` examples of `backend`."""

    backend: Name
    searched: Count
    pairs: tuple[Pair, ...]


class CaseKept(Event, frozen=True, kw_only=True, tag=True):
    """A case went into the corpus, because of `why`."""

    backend: Name
    case_id: str
    why: str


class FailureEvent(Event, frozen=True, kw_only=True):
    """What happened to a failure: `observation` is how `case` failed."""

    fingerprint: Fingerprint
    case: Case
    observation: Observation


class SuspectSeen(FailureEvent, frozen=True, kw_only=True, tag=True):
    """A case failed in a way that is not on file yet; it is confirmed and shrunk now, or waits if `left_over`."""

    left_over: bool = False


class FindingFiled(FailureEvent, frozen=True, kw_only=True, tag=True):
    """A failure was confirmed, shrunk and filed in the folder `path`. `report` is it in readable form.

    `name` tells findings apart; `fingerprint` is what it was before shrinking. `needs` are the features that it needs,
    by name (`attnfuzz.harness.reduce.ablation.FEATURES`). `cause` is the finding that stands for its cause, "" if that
    is this one. `known` is the ledger's reason, if it has one. `state` is NEW, or RETURNED where an earlier campaign
    saw it fixed. `recurrence` is how often it comes back, if it does not always.
    """

    name: str
    path: str
    report: str
    needs: tuple[str, ...] = ()
    cause: str = ""
    state: State = State.NEW
    known: str | None = None
    recurrence: Recurrence | None = None


class AlreadyFiled(Event, frozen=True, kw_only=True, tag=True):
    """A failure was confirmed and shrunk, and turned out to be the finding `name`, which this campaign knows."""

    fingerprint: Fingerprint
    name: str


class FindingChecked(FailureEvent, frozen=True, kw_only=True, tag=True):
    """A finding of an earlier campaign was run again. `state` is OPEN, RETURNED (it had been fixed) or FIXED.

    `times` it failed out of `runs`. `case` is the smallest that is on file. `needs` and `cause` are as in FindingFiled.
    """

    name: str
    path: str
    needs: tuple[str, ...] = ()
    cause: str = ""
    state: State
    runs: Count = 1
    times: Count = 0
    known: str | None = None


class CausesMerged(Event, frozen=True, kw_only=True, tag=True):
    """What the cause of finding `cause` predicts was run, and explains the finding `name` and all of its cause.

    `known` is the ledger's reason for the finding `cause`, if it has one.
    """

    name: str
    cause: str
    known: str | None = None


class UnconfirmedKept(FailureEvent, frozen=True, kw_only=True, tag=True):
    """A failure that is no finding, because of `reason`, was kept in the folder `path`.

    `known` is the ledger's reason, if it has one.
    """

    path: str
    reason: str
    known: str | None = None


class GapSeen(FailureEvent, frozen=True, kw_only=True, tag=True):
    """A case broke only what the strict contract asks; told once per fingerprint."""


class SliceFinished(Event, frozen=True, kw_only=True, tag=True):
    """A slice of the search ended. `unsupported` counts the cases that the backend clearly rejected, by its message."""

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
    """At the end: entry number `entry` (from 1) of the ledger no longer happens, or was never met."""

    entry: Count
    title: str
    text: str


class Trouble(Event, frozen=True, kw_only=True, tag=True):
    """Something of the harness' surroundings broke, and the campaign goes on without it: a database, say."""

    text: str


class JobRestarted(Event, frozen=True, kw_only=True, tag=True):
    """A job process was killed from outside and started anew. `text` is how it ended."""

    job: Job
    text: str


class JobFailed(Event, frozen=True, kw_only=True, tag=True):
    """A job process ended by itself: the harness is broken, and the campaign ends. `text` is its standard error."""

    job: Job
    text: str


class CampaignFinished(Event, frozen=True, kw_only=True, tag=True):
    """The last event. `interrupted` says whether the user stopped it."""

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
    | AlreadyFiled
    | FindingChecked
    | CausesMerged
    | UnconfirmedKept
    | GapSeen
    | SliceFinished
    | LedgerRemark
    | Trouble
    | JobRestarted
    | JobFailed
    | CampaignFinished
)

AnyFinding = FindingFiled | FindingChecked

Handler = Callable[[Event], None]
