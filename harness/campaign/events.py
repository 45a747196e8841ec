"""What a campaign tells the world: every output (terminal, log, summary) is a handler of these events, and only that.

The events but `Progress` make up the log, one JSON object per line; `LOG_VERSION` says which fields they have.
"""

from collections.abc import Callable

import msgspec

from attnfuzz.harness.failures import Observation
from attnfuzz.reference.case import Case

LOG_VERSION = 1


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """Something that happened in a campaign, `at` seconds after its start."""

    at: float


class CampaignStarted(Event, frozen=True, kw_only=True, tag=True):
    """The first event. `examples` is per backend; either it or `seconds` is the budget.

    `alpha` is the number of false alarms expected of correct backends, before confirmation; None in older logs.
    """

    log_version: int = LOG_VERSION
    attnfuzz: str
    backends: tuple[str, ...]
    examples: int | None
    seconds: float | None
    seed: int
    jobs: int
    contract: str
    alpha: float | None = None


class Progress(Event, frozen=True, kw_only=True, tag=True):
    """`cases` more were judged, and `deaths` workers died of them. `shrinking` says whether these were suspects."""

    backend: str
    cases: int
    deaths: int
    shrinking: bool


class SuspectSeen(Event, frozen=True, kw_only=True, tag=True):
    """A case failed in a way that is not on file yet; it is about to be confirmed and shrunk."""

    case: Case
    observation: Observation


class FindingFiled(Event, frozen=True, kw_only=True, tag=True):
    """A failure was confirmed, shrunk and filed in the folder `path`. `report` is it in readable form."""

    case: Case
    observation: Observation
    path: str
    report: str


class UnconfirmedKept(Event, frozen=True, kw_only=True, tag=True):
    """A failure that is no finding, because of `reason`, was kept in the folder `path`."""

    case: Case
    observation: Observation
    path: str
    reason: str


class GapSeen(Event, frozen=True, kw_only=True, tag=True):
    """A case broke only what the strict contract asks; told once per fingerprint."""

    case: Case
    observation: Observation


class SliceFinished(Event, frozen=True, kw_only=True, tag=True):
    """A slice of the search ended. `unsupported` counts the cases that the backend clearly rejected, by its message."""

    backend: str
    index: int
    seed: int
    examples: int
    cases: int
    deaths: int
    seconds: float
    unsupported: dict[str, int]


class JobFailed(Event, frozen=True, kw_only=True, tag=True):
    """A job process ended by itself: the harness is broken, and the campaign ends. `text` is its standard error."""

    job: int
    text: str


class CampaignFinished(Event, frozen=True, kw_only=True, tag=True):
    """The last event. `interrupted` says whether the user stopped it."""

    interrupted: bool


Handler = Callable[[Event], None]
