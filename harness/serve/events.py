"""The events of a campaign against a server; together they are its log.

Their log lies where that of `attnfuzz fuzz` lies in a home, with kinds of events of its own: a finding is a trace, and
no case.
"""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta

from attnfuzz.harness.findings.state import State
from attnfuzz.harness.serve.floor import NoiseFloor
from attnfuzz.harness.serve.judging import ServedFault
from attnfuzz.harness.serve.surface import Ability, Surface
from attnfuzz.harness.serve.trace import RequestTrace

SERVE_LOG_VERSION = 1

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Whole = Annotated[int, Meta(ge=0, le=1 << 53)]


class ServeEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="event"):
    """An event, `at` seconds after the campaign's start; continues when it is resumed."""

    at: Seconds


class ServeStarted(ServeEvent, frozen=True, kw_only=True, tag=True):
    """The first event. Either `traces` or `seconds` is the budget. Of a token, only its variable is logged."""

    log_version: int = SERVE_LOG_VERSION
    campaign: str
    time: float
    attnfuzz: str
    environment: dict[str, str]
    url: str
    start: str | None
    mine: bool
    concurrency: int
    traces: int | None
    seconds: float | None
    seed: int
    floor: float | None
    timeout: float
    ready: float
    token_env: str | None = None
    until_finding: bool = False
    ledger: str | None = None


class ServeResumed(ServeEvent, frozen=True, kw_only=True, tag=True):
    """The campaign resumes after its process ended early."""

    time: float


class ServerFound(ServeEvent, frozen=True, kw_only=True, tag=True):
    """The surface of the server was found out."""

    surface: Surface


class FloorMeasured(ServeEvent, frozen=True, kw_only=True, tag=True):
    """The noise floor."""

    floor: NoiseFloor


class ServeProgress(ServeEvent, frozen=True, kw_only=True, tag=True):
    """A part of the slice `index` was run; for `busy` seconds a request was under way."""

    index: Whole
    traces: Whole
    requests: Whole
    tokens: Whole
    busy: Seconds
    margin: float
    preempted: float
    hits: float


class ServeSuspect(ServeEvent, frozen=True, kw_only=True, tag=True):
    """A trace failed; it is run again and minimized now."""

    fault: ServedFault
    requests: Whole


class ServeFiled(ServeEvent, frozen=True, kw_only=True, tag=True):
    """A cause was confirmed, minimized and filed in the folder `path`.

    Its trace failed `times` of `runs`, and passes without any of `needs`. `known` is the ledger's reason.
    """

    name: str
    path: str
    state: State
    fault: ServedFault
    trace: RequestTrace
    needs: tuple[str, ...]
    report: str
    runs: Whole = 1
    times: Whole = 1
    tried: Whole = 0
    seconds: Seconds = 0.0
    known: str | None = None


class ServeExplained(ServeEvent, frozen=True, kw_only=True, tag=True):
    """A failing trace is a symptom of the finding `name`: it passes without its needs, and fails with them alone."""

    name: str
    fault: ServedFault
    requests: Whole
    seconds: Seconds = 0.0


class ServeNotExamined(ServeEvent, frozen=True, kw_only=True, tag=True):
    """A failing trace was counted only: no known cause explains it in the time for that, if there was any.

    As many failures of its kind were minimized as are minimized in one campaign.
    """

    fault: ServedFault
    seconds: Seconds = 0.0


class ServeAgain(ServeEvent, frozen=True, kw_only=True, tag=True):
    """A failure turned out to be the finding `name`, which this campaign has filed: it needs the same features."""

    name: str
    fault: ServedFault | None = None


class ServeChecked(ServeEvent, frozen=True, kw_only=True, tag=True):
    """A finding of an earlier campaign was run again: it failed in the last of `runs`, or passed all."""

    name: str
    path: str
    state: State
    fault: ServedFault
    needs: tuple[str, ...] = ()
    runs: Whole = 1
    known: str | None = None


class ServeUnconfirmed(ServeEvent, frozen=True, kw_only=True, tag=True):
    """A failure did not come back in `runs` runs; it was kept in the folder `path`."""

    path: str
    fault: ServedFault
    runs: Whole


class NoLongerDrawn(ServeEvent, frozen=True, kw_only=True, tag=True):
    """An ability of the server is no longer asked for, since the finding `name`, which needs it, kills the server.

    Without an `ability`, requests are no longer aborted, nor the pool overcommitted.
    """

    ability: Ability | None
    name: str


class ServerRestarted(ServeEvent, frozen=True, kw_only=True, tag=True):
    """The server was started again, which took `seconds`."""

    seconds: Seconds
    why: str


class ServeTrouble(ServeEvent, frozen=True, kw_only=True, tag=True):
    """Something that the user should know; the campaign goes on."""

    text: str


class ServeRemark(ServeEvent, frozen=True, kw_only=True, tag=True):
    """At the end: an entry of the ledger matched nothing."""

    title: str


class ServeFinished(ServeEvent, frozen=True, kw_only=True, tag=True):
    """The last event. `ended` says why it ended early, if it did."""

    time: float
    interrupted: bool = False
    ended: str = ""


AnyServeEvent = (
    ServeStarted
    | ServeResumed
    | ServerFound
    | FloorMeasured
    | ServeProgress
    | ServeSuspect
    | ServeFiled
    | ServeExplained
    | ServeNotExamined
    | ServeAgain
    | ServeChecked
    | ServeUnconfirmed
    | NoLongerDrawn
    | ServerRestarted
    | ServeTrouble
    | ServeRemark
    | ServeFinished
)

ServeHandler = Callable[[AnyServeEvent], None]
