"""Traces that fail, on a server that may have to be restarted: run again, attributed and minimized."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from attnfuzz.harness.search.settle import settle
from attnfuzz.harness.serve.check import Judged, judge_trace
from attnfuzz.harness.serve.client import NoAnswer, ServerError
from attnfuzz.harness.serve.judging import ServedFault
from attnfuzz.harness.serve.launch import answers
from attnfuzz.harness.serve.predictions import KnownServerCause
from attnfuzz.harness.serve.stages import RUNS_TO_CONFIRM, Hunted, TraceStages, alike_in
from attnfuzz.harness.serve.target import TestedServer
from attnfuzz.harness.serve.trace import RequestTrace
from attnfuzz.harness.verdict.recurrence import interval, runs_to_show

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_TO_COME_BACK = 60.0
"""Time in which a supervisor may restart a server that died, where no command to start it was given."""


class Gone(ServerError):
    """The server was spoilt by `trace`, which showed `fault`, and does not get well again."""

    def __init__(self, message: str, trace: RequestTrace, fault: ServedFault) -> None:
        super().__init__(message)
        self.trace = trace
        self.fault = fault


@dataclass(frozen=True)
class Reran:
    """A trace that was run again: it failed in the last of `runs`, or passed `enough` to be fixed, or neither."""

    fault: ServedFault | None
    runs: int
    enough: bool


def runs_to_fix(times: int, runs: int) -> int:
    """Return how many runs have to pass for a finding that failed in `times` of `runs` to be fixed.

    A finding with the rate at the low end of its 95% interval shows in these with a probability of 99%.
    """
    # One without a record has failed at least once.
    low, _ = interval(times, runs) if times else interval(1, 1)
    return max(RUNS_TO_CONFIRM, runs_to_show(low))


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
        began = self.clock()
        while not self.stopped():
            if answers(self.server.client) and self._flushes():
                self.restarted(self.clock() - began, why)
                return
            if self.clock() - began >= SECONDS_TO_COME_BACK:
                break
            time.sleep(SECONDS_BETWEEN_LOOKS)
        if self.stopped():
            raise ServerError(f"interrupted before the server recovered from {why}")
        raise ServerError(
            f"{self.server.client.address} did not recover from {why}: give --start, so that it can be restarted"
        )

    def _flushes(self) -> bool:
        try:
            # First, since it fails at once on a server that hangs.
            self.server.flush()
            self.server.begin_anew()
        except (NoAnswer, ServerError):
            return False
        return True

    def again(self, trace: RequestTrace, fault: ServedFault, *, most: int, seconds: float) -> Reran:
        """Run an earlier finding's trace until it fails alike, `most` times, for at most about `seconds`."""
        began = self.clock()
        for runs in range(1, most + 1):
            found = alike_in(self.judge(trace), fault)
            if found is not None:
                return Reran(found, runs, enough=False)
            if self.stopped() or self.clock() - began >= seconds:
                return Reran(None, runs, enough=runs == most)
        return Reran(None, most, enough=True)

    def hunt(
        self, trace: RequestTrace, fault: ServedFault, *, seconds: float, known: Sequence[KnownServerCause] = ()
    ) -> Hunted:
        """Run a failing trace again, and find the known cause that explains it, or else minimize it.

        Takes up to `seconds`. Raises ServerError.
        """
        stages = self._stages(known, seconds)
        suspected = Hunted(trace=trace, fault=fault, times=0, runs=0)
        return settle(stages, suspected) or replace(suspected, runs=stages.runs)

    def explained(
        self, trace: RequestTrace, fault: ServedFault, known: Sequence[KnownServerCause], *, seconds: float
    ) -> Hunted:
        """Run a failing trace again, and find the known cause that explains it, if any."""
        stages = self._stages(known, seconds, share_to_attribute=1.0)
        suspected = Hunted(trace=trace, fault=fault, times=0, runs=0)
        confirmed = stages.confirm(suspected)
        if confirmed is None:
            return replace(suspected, runs=stages.runs)
        cause, failing = stages.attribute(confirmed)
        return failing if cause is None else stages.describe(failing, cause)

    def _stages(self, known: Sequence[KnownServerCause], seconds: float, **share: float) -> TraceStages:
        surface = self.server.surface
        return TraceStages(self.judge, surface, known, seconds=seconds, stopped=self.stopped, clock=self.clock, **share)
