"""From a trace that failed to a finding: run again, minimized, and reduced to the features that it needs."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from attnfuzz.harness.serve.check import Judged, judge_trace
from attnfuzz.harness.serve.client import NoAnswer, ServerError
from attnfuzz.harness.serve.judging import ServedFault, ServedKind
from attnfuzz.harness.serve.launch import answers
from attnfuzz.harness.serve.shrink import shrink_trace
from attnfuzz.harness.serve.target import TestedServer
from attnfuzz.harness.serve.trace import RequestTrace

RUNS_TO_CONFIRM = 4
TRIES_WHEN_FLAKY = 3

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_COME_BACK = 60.0
"""Time in which a supervisor may restart a server that died, where no command to start it was given."""


class Gone(ServerError):
    """The server was spoilt by `trace`, which showed `fault`, and does not get well again."""

    def __init__(self, message: str, trace: RequestTrace, fault: ServedFault) -> None:
        super().__init__(message)
        self.trace = trace
        self.fault = fault


@dataclass(frozen=True, kw_only=True)
class Hunted:
    """A failure after minimizing: `times` of `runs` it came back; `tried` traces were run for it in `seconds`."""

    trace: RequestTrace
    fault: ServedFault
    times: int
    runs: int
    tried: int = 0
    seconds: float = 0.0

    @property
    def confirmed(self) -> bool:
        """Whether it came back."""
        return self.times > 0


@dataclass(kw_only=True)
class FaultHunter:
    """Judges traces on a server, and restarts it when that is needed; `restarted` is called with seconds and reason."""

    server: TestedServer
    floor: float
    restarted: Callable[[float, str], None]
    stopped: Callable[[], bool] = field(default=lambda: False)
    clock: Callable[[], float] = field(default=time.monotonic)

    def judge(self, trace: RequestTrace) -> Judged:
        """Judge a trace, and restart the server if the trace spoilt it. Raises ServerError, also Gone."""
        judged = judge_trace(self.server, trace, self.floor)
        if judged.spoilt:
            fault = judged.faults[0]
            try:
                self._well_again(fault.kind.value)
            except ServerError as error:
                raise Gone(str(error), trace, fault) from error
        return judged

    def _well_again(self, why: str) -> None:
        if self.server.launched is not None:
            self.restarted(self.server.restart(self.stopped), why)
            return
        self.server.forget_baselines()
        began = self.clock()
        while self.clock() - began < SECONDS_TO_COME_BACK and not self.stopped():
            if answers(self.server.client) and self._flushes():
                self.restarted(self.clock() - began, why)
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)
        if self.stopped():
            raise ServerError(f"interrupted before the server was well again after {why}")
        raise ServerError(
            f"{self.server.client.address} is not well again after {why}: give --start, with which it is restarted"
        )

    def _flushes(self) -> bool:
        try:
            self.server.flush()
        except (NoAnswer, ServerError):
            return False
        return True

    def again(self, trace: RequestTrace, fault: ServedFault) -> ServedFault | None:
        """Run an earlier finding's trace until it fails alike, a few times; None if it never does."""
        for _ in range(RUNS_TO_CONFIRM):
            if self.stopped():
                break
            found = _alike(self.judge(trace), fault)
            if found is not None:
                return found
        return None

    def hunt(self, trace: RequestTrace, fault: ServedFault, *, seconds: float) -> Hunted:
        """Run a failing trace again, then minimize it for up to `seconds`. Raises ServerError."""
        began = self.clock()
        times = runs = 0
        while runs < RUNS_TO_CONFIRM and not self.stopped():
            runs += 1
            again = _alike(self.judge(trace), fault)
            times += again is not None
            if again is not None and (runs == times or times > 1):
                break
        if not times:
            return Hunted(trace=trace, fault=fault, times=0, runs=runs)
        flaky = times < runs
        # One that fails by chance is not taken for one that always fails. A death is: each costs a restart.
        wanted = 1 if flaky or fault.kind is ServedKind.DIED else 2
        tries = TRIES_WHEN_FLAKY if flaky else wanted
        latest = fault

        def fails(candidate: RequestTrace) -> bool:
            nonlocal latest
            seen = 0
            for _ in range(tries):
                if self.stopped():
                    return False
                found = _alike(self.judge(candidate), fault)
                seen += found is not None
                if found is not None and seen == wanted:
                    latest = found
                    return True
                if found is None and not flaky:
                    return False
            return False

        smallest, tried = shrink_trace(trace, fails, over=lambda: self.stopped() or self.clock() - began >= seconds)
        spent = self.clock() - began
        return Hunted(trace=smallest, fault=latest, times=times, runs=runs, tried=tried, seconds=spent)


def _alike(judged: Judged, fault: ServedFault) -> ServedFault | None:
    """The fault that may be the same bug; death may come as a hang, and the reverse."""
    deaths = {ServedKind.DIED, ServedKind.HUNG}
    for found in judged.faults:
        if found.like(fault) or {found.kind, fault.kind} <= deaths:
            return found
    return None
