"""A campaign against a server: calibrates, runs earlier findings again, draws traces, files failures."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import attnfuzz
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.serve.ablation import features
from attnfuzz.harness.serve.client import NoAnswer, ServerError
from attnfuzz.harness.serve.draw import SlicesAhead
from attnfuzz.harness.serve.events import (
    AnyServeEvent,
    FloorMeasured,
    NoLongerDrawn,
    ServeAgain,
    ServeChecked,
    ServeExplained,
    ServeFiled,
    ServeFinished,
    ServeHandler,
    ServeNotExamined,
    ServeProgress,
    ServeRemark,
    ServeResumed,
    ServerFound,
    ServerRestarted,
    ServeStarted,
    ServeSuspect,
    ServeTrouble,
    ServeUnconfirmed,
)
from attnfuzz.harness.serve.findings import (
    REPORT,
    SCRIPT,
    SERVER_LOG,
    TRACE,
    ServeArchive,
    encoded,
    finding_name_of,
)
from attnfuzz.harness.serve.floor import calibrate_floor, margin
from attnfuzz.harness.serve.hunt import FaultHunter, Gone, runs_to_fix
from attnfuzz.harness.serve.judging import ServedFault, ServedKind
from attnfuzz.harness.serve.ledger import ServerLedger
from attnfuzz.harness.serve.predictions import KnownServerCause
from attnfuzz.harness.serve.script import script_of
from attnfuzz.harness.serve.stages import RUNS_TO_CONFIRM, Hunted
from attnfuzz.harness.serve.standing import MOST_ALIKE, ServeStanding
from attnfuzz.harness.serve.surface import Ability, client_environment, server_environment
from attnfuzz.harness.serve.target import TestedServer
from attnfuzz.harness.serve.trace import RequestTrace, describe_trace

TRACES_PER_SLICE = 10

SHRINKING_SHARE = 0.5
"""Share of the rest of the time for minimizing one failure, and at least:"""

LEAST_SECONDS_TO_SHRINK = 30.0
MOST_SECONDS_TO_SHRINK = 300.0

EXPLAINING_SHARE = 0.2
"""Share of the search so far for explaining failures of kinds that are minimized no more, and at least:"""

LEAST_SECONDS_TO_EXPLAIN = 20.0

MOST_SECONDS_TO_CHECK = 300.0
"""Time for one finding of an earlier campaign, and at most this share of the rest."""

_TOO_FEW = (
    "finding {} passed {} of the {} runs after which it would be fixed, and there was no time for more: give a longer "
    "--time"
)

_NO_FLUSH = "The prefix cache can't be flushed, so requests sent alone may hit it too. {}"

_NO_METRICS = "There are no metrics, so counters are not compared and leaks are not detected. {}"

ABILITY_OF = {
    "n > 1": Ability.SEVERAL,
    "priorities": Ability.PRIORITY,
    "few tokens allowed": Ability.BIAS,
    "grammar": Ability.GRAMMAR,
    "scored prompt": Ability.SCORED,
}
"""The ability that a feature of traces needs."""


@dataclass(frozen=True, kw_only=True)
class ServePlan:
    """A campaign of `traces` or of `seconds`; `floor` is measured unless it is given."""

    url: str
    out: Path
    start: str | None = None
    mine: bool = False
    concurrency: int = 16
    traces: int | None = None
    seconds: float | None = None
    seed: int = 0
    floor: float | None = None
    timeout: float = 60.0
    ready: float = 600.0
    token_env: str | None = None
    until_finding: bool = False
    ledger: Path | None = None


def settings(of: ServePlan | ServeStarted) -> dict[str, Any]:
    """Return the settings that a log and a plan have in common."""
    names = "url start mine concurrency traces seconds seed floor timeout ready token_env until_finding"
    return {name: getattr(of, name) for name in names.split()}


@dataclass(kw_only=True)
class ServeCampaign:
    """Runs `plan` on `server` as the campaign of this name; `past` are its events so far, if it is resumed."""

    plan: ServePlan
    server: TestedServer
    home: Home
    name: str
    ledger: ServerLedger
    handlers: Sequence[ServeHandler]
    stop: threading.Event
    past: Sequence[AnyServeEvent] = ()
    clock: Callable[[], float] = field(default=time.monotonic)

    def __post_init__(self) -> None:
        """Fold the events so far."""
        self._standing = ServeStanding.of(self.past)
        self._began = self.clock() - self._standing.at
        self._searched_from = self._began
        self._next = self._standing.slices
        self._slices = SlicesAhead(
            TRACES_PER_SLICE, self.plan.concurrency, lambda index: self.plan.seed * 1_000_003 + index
        )

    def run(self) -> ServeStanding:
        """Run it to its end, and return where it stands. Raises ServerError and OSError."""
        ended = ""
        try:
            self._prepare()
            self._check_past()
            self._search()
        except Gone as error:
            ended = str(error)
            self._keep(error.trace, error.fault, runs=0)
        finally:
            self._slices.end()
            if self.server.launched is not None:
                self.server.launched.end()
        for title in self.ledger.unused():
            self._emit(ServeRemark(at=self._at, title=title))
        self._emit(ServeFinished(at=self._at, time=time.time(), interrupted=self.stop.is_set(), ended=ended))
        return self._standing

    @property
    def _at(self) -> float:
        return max(self.clock() - self._began, self._standing.at)

    def _emit(self, event: AnyServeEvent) -> None:
        self._standing(event)
        for handle in self.handlers:
            handle(event)

    def _prepare(self) -> None:
        plan = self.plan
        if self.server.launched is not None:
            seconds = self.server.restart(self.stop.is_set)
            self._emit_started()
            self._restarted(seconds, "the campaign begins")
            surface = self.server.find_out()
        else:
            # Errors so far leave no campaign behind.
            surface = self.server.find_out()
            self._emit_started()
        self._emit(ServerFound(at=self._at, surface=surface))
        if self.server.mine and Ability.FLUSH not in surface.can:
            self._emit(ServeTrouble(at=self._at, text=_NO_FLUSH.format(self.server.api.no_flush)))
        if self.server.mine and Ability.METRICS not in surface.can:
            self._emit(ServeTrouble(at=self._at, text=_NO_METRICS.format(self.server.api.no_metrics)))
        try:
            self.server.flush()
            self._floor = calibrate_floor(self.server, plan.seed, plan.floor)
        except NoAnswer as error:
            raise ServerError(
                f"the server died while its noise floor was measured with plain requests: {error}"
            ) from None
        self._emit(FloorMeasured(at=self._at, floor=self._floor))
        self._hunter = FaultHunter(
            server=self.server,
            floor=self._floor.allowed,
            restarted=self._restarted,
            stopped=self.stop.is_set,
            clock=self.clock,
        )
        self._environment = client_environment() | server_environment(surface, plan.start)
        self._archive = ServeArchive(
            findings=self.home.findings,
            unconfirmed=self.home.unconfirmed,
            campaign=self.name,
            environment=self._environment,
        )
        # A server that compiles and starts takes no time from the search.
        self._searched_from = self.clock() - self._standing.searched

    def _emit_started(self) -> None:
        if self.past:
            self._emit(ServeResumed(at=self._at, time=time.time()))
            return
        plan = self.plan
        self._emit(
            ServeStarted(
                at=0.0,
                campaign=self.name,
                time=time.time(),
                attnfuzz=attnfuzz.__version__,
                environment=client_environment(),
                ledger=None if plan.ledger is None else str(plan.ledger.absolute()),
                **settings(plan),
            )
        )

    def _restarted(self, seconds: float, why: str) -> None:
        self._emit(ServerRestarted(at=self._at, seconds=seconds, why=why))

    def _check_past(self) -> None:
        """Run the findings of earlier campaigns again, unless they crash a server that is not ours."""
        records, troubles = self._archive.past()
        for text in troubles:
            self._emit(ServeTrouble(at=self._at, text=text))
        for record in records:
            if record.name in self._standing.settled or self._over:
                continue
            most = runs_to_fix(record.times, record.runs)
            seconds = min(MOST_SECONDS_TO_CHECK, SHRINKING_SHARE * self._rest)
            reran = self._hunter.again(record.trace, record.fault, most=most, seconds=seconds)
            fault = reran.fault
            if fault is None and not reran.enough:
                if not self.stop.is_set():
                    self._emit(ServeTrouble(at=self._at, text=_TOO_FEW.format(record.name, reran.runs, most)))
                continue
            state = self._archive.checked(record, reran)
            known = self.ledger.reason(record.fault, record.needs, record.name, self.server.surface.engine)
            self._emit(
                ServeChecked(
                    at=self._at,
                    name=record.name,
                    path=str(record.path),
                    state=state,
                    fault=fault or record.fault,
                    needs=record.needs,
                    runs=reran.runs,
                    known=known,
                )
            )
            if fault is not None and fault.kind is ServedKind.DIED:
                self._avoid(record.name, record.needs)

    @property
    def _over(self) -> bool:
        if self.stop.is_set() or (self.plan.until_finding and self._standing.failing):
            return True
        return self.plan.seconds is not None and self.clock() - self._searched_from >= self.plan.seconds

    @property
    def _rest(self) -> float:
        if self.plan.seconds is None:
            return float("inf")
        return self.plan.seconds - (self.clock() - self._searched_from)

    def _search(self) -> None:
        plan = self.plan
        while not self._over and (plan.traces is None or self._standing.traces < plan.traces):
            self._slice(self._next)
            self._next += 1

    @property
    def _avoided(self) -> set[Ability | None]:
        return {event.ability for event in self._standing.avoided}

    def _slice(self, index: int) -> None:
        avoided = self._avoided
        surface = replace(
            self.server.surface, can=tuple(each for each in self.server.surface.can if each not in avoided)
        )
        left = TRACES_PER_SLICE
        if self.plan.traces is not None:
            left = min(left, self.plan.traces - self._standing.traces)
        gentle = not self.server.mine or None in avoided
        last = self.plan.traces == self._standing.traces + left
        for trace in self._slices.take(index, surface, gentle=gentle, last=last)[:left]:
            # The rest of a slice may have a feature that kills the server.
            if self._over or self._avoided != avoided:
                break
            self._one(index, trace)

    def _one(self, index: int, trace: RequestTrace) -> None:
        server = self.server
        before = server.requests_sent, server.tokens_generated, server.busy_seconds
        judged = self._hunter.judge(trace)
        self._emit(
            ServeProgress(
                at=self._at,
                index=index,
                traces=1,
                requests=server.requests_sent - before[0],
                tokens=server.tokens_generated - before[1],
                busy=server.busy_seconds - before[2],
                margin=margin(judged, self._floor),
                preempted=judged.preempted,
                hits=judged.hits,
            )
        )
        for fault in list(judged.faults)[:1]:
            self._failed(trace, fault)

    def _failed(self, trace: RequestTrace, fault: ServedFault) -> None:
        self._emit(ServeSuspect(at=self._at, fault=fault, requests=len(trace.requests)))
        known = [each for each in self._standing.known_causes if each.fault.like(fault)]
        # Each cause that is found may hide another.
        if self._standing.minimized_like(fault) >= MOST_ALIKE + len(known):
            self._explain(trace, fault, known)
            return
        seconds = min(max(LEAST_SECONDS_TO_SHRINK, SHRINKING_SHARE * self._rest), MOST_SECONDS_TO_SHRINK)
        hunted = self._hunter.hunt(trace, fault, seconds=seconds, known=known)
        if hunted.cause:
            self._emit_explained(hunted, trace)
        elif hunted.confirmed:
            self._file(hunted, first=trace)
        else:
            self._keep(trace, fault, runs=hunted.runs)

    def _explain(self, trace: RequestTrace, fault: ServedFault, known: Sequence[KnownServerCause]) -> None:
        """Run the predictions of known causes for a failure that is not minimized, as far as there is time."""
        began, standing = self.clock(), self._standing
        seconds = EXPLAINING_SHARE * standing.searched + LEAST_SECONDS_TO_EXPLAIN - standing.explaining
        if known and seconds > 0:
            hunted = self._hunter.explained(trace, fault, known, seconds=min(seconds, self._rest))
            if hunted.cause:
                self._emit_explained(hunted, trace)
                return
        self._emit(ServeNotExamined(at=self._at, fault=fault, seconds=self.clock() - began))

    def _emit_explained(self, hunted: Hunted, trace: RequestTrace) -> None:
        fault, number = hunted.fault, len(trace.requests)
        self._emit(ServeExplained(at=self._at, name=hunted.cause, fault=fault, requests=number, seconds=hunted.seconds))
        self._archive.add_symptom(hunted.cause, fault)

    def _keep(self, trace: RequestTrace, fault: ServedFault, *, runs: int) -> None:
        """File a failure that is not confirmed."""
        name = f"{finding_name_of(fault, features(trace, self.server.surface))}-{self.name}"
        path = self._archive.keep(name, fault, self._files(trace, trace, fault, f"{fault.message}\n"))
        self._emit(ServeUnconfirmed(at=self._at, path=str(path), fault=fault, runs=runs))

    def _file(self, hunted: Hunted, *, first: RequestTrace) -> None:
        needs = hunted.needs
        name = finding_name_of(hunted.fault, needs)
        if name in self._standing.settled:
            self._emit(ServeAgain(at=self._at, name=name, fault=hunted.fault))
            self._archive.add_symptom(name, hunted.fault)
            return
        report, runs = "\n".join(self._lines(hunted)), runs_to_fix(hunted.times, hunted.runs)
        files = self._files(hunted.trace, first, hunted.fault, report, runs)
        path, state = self._archive.file(name, hunted, needs, files)
        self._archive.add_symptom(name, hunted.fault)
        known = self.ledger.reason(hunted.fault, needs, name, self.server.surface.engine)
        self._emit(
            ServeFiled(
                at=self._at,
                name=name,
                path=str(path),
                state=state,
                fault=hunted.fault,
                trace=hunted.trace,
                needs=needs,
                report=report,
                runs=hunted.runs,
                times=hunted.times,
                tried=hunted.tried,
                seconds=hunted.seconds,
                known=known,
            )
        )
        if hunted.fault.kind is ServedKind.DIED:
            self._avoid(name, needs)

    def _avoid(self, name: str, needs: Sequence[str]) -> None:
        """Draw a feature that kills the server no more: it would cost restarts, and hide everything behind it."""
        for ability in (ABILITY_OF[each] for each in needs if each in ABILITY_OF):
            self._emit(NoLongerDrawn(at=self._at, ability=ability, name=name))
        if "abort" in needs:
            self._emit(NoLongerDrawn(at=self._at, ability=None, name=name))

    def _lines(self, hunted: Hunted) -> Iterator[str]:
        fault = hunted.fault
        yield f"{fault.kind}: {fault.message}"
        yield f"  {self._floor.words}"
        if hunted.flaky:
            yield f"  flaky: {hunted.times} of {hunted.runs} runs failed"
        if hunted.needs or not hunted.untried:
            yield f"  needs {', '.join(hunted.needs) or 'only its requests'}"
        if hunted.untried:
            yield f"  not run without: {', '.join(hunted.untried)} (no time left)"
        yield ""
        yield describe_trace(hunted.trace)
        yield ""
        yield from (f"{name}: {text}" for name, text in self._environment.items())

    def _files(
        self, trace: RequestTrace, first: RequestTrace, fault: ServedFault, report: str, runs: int = RUNS_TO_CONFIRM
    ) -> dict[str, bytes]:
        files = {
            TRACE: encoded(trace),
            "first.json": encoded(first),
            REPORT: f"{report}\n".encode(),
            SCRIPT: script_of(self.server, trace, fault, self._floor.allowed, runs).encode(),
        }
        launched = self.server.launched
        if launched is not None:
            died = fault.kind is ServedKind.DIED
            files[SERVER_LOG] = (launched.last_words if died else launched.tail()).encode(errors="replace")
        return files
