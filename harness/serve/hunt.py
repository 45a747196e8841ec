"""From a trace that failed to a finding: run again, minimized, and reduced to the features that it needs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from attnfuzz.harness.serve.ablation import Rerunning, ablated, features
from attnfuzz.harness.serve.check import Judged, judge_trace
from attnfuzz.harness.serve.client import NoAnswer, ServerError
from attnfuzz.harness.serve.explained import KnownServerCause, explain_trace
from attnfuzz.harness.serve.judging import ServedFault, ServedKind
from attnfuzz.harness.serve.launch import answers
from attnfuzz.harness.serve.shrink import shrink_trace
from attnfuzz.harness.serve.target import TestedServer
from attnfuzz.harness.serve.trace import RequestTrace
from attnfuzz.harness.verdict.recurrence import interval, runs_to_show

RUNS_TO_CONFIRM = 4
TRIES_WHEN_FLAKY = 3

RUNS_TO_RATE = 8
"""Runs of a minimized trace: it is known how often it fails. A death has none, since each costs a restart."""

SHARE_TO_RATE = 0.2
"""Share of the time for minimizing in which these runs begin."""

RUNS_TO_PASS = 2
"""Runs after which a trace passes without a feature, where its failure does not come and go."""

SHARE_TO_ABLATE = 0.4
"""Share of the time for minimizing in which known causes are tried, and features are removed."""

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
    """A failure after minimizing: `trace` failed in `times` of `runs`; `tried` traces were run for it in `seconds`.

    It passes without any of the features that it `needs`; without the `untried` ones it was not run. A failure that a
    known `cause` explains is not minimized.
    """

    trace: RequestTrace
    fault: ServedFault
    times: int
    runs: int
    tried: int = 0
    seconds: float = 0.0
    needs: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    cause: str = ""

    @property
    def confirmed(self) -> bool:
        """Whether it came back."""
        return self.times > 0

    @property
    def flaky(self) -> bool:
        """Whether it comes and goes."""
        return self.times < self.runs


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
            found = _alike(self.judge(trace), fault)
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
        began = self.clock()
        until = began + seconds
        first = self._confirmed(trace, fault)
        if not first.confirmed:
            return first
        first = self._explained(first, known, until=began + SHARE_TO_ABLATE * seconds)
        if first.cause:
            return replace(first, seconds=self.clock() - began)
        plain = self._ablated(first, until=began + SHARE_TO_ABLATE * seconds)
        # One that fails by chance is not taken for one that always fails. A death is: each costs a restart.
        wanted = 1 if first.flaky or fault.kind is ServedKind.DIED else 2
        found = self._minimized(plain, wanted, until=until, seconds=seconds)
        if found.flaky and wanted > 1:
            # Minimizing has slid into a failure by chance: each candidate has to fail more often.
            steady = self._minimized(plain, RUNS_TO_RATE, until=until, seconds=seconds)
            better = steady.trace != plain.trace and steady.times * found.runs > found.times * steady.runs
            found = replace(steady if better else found, tried=found.tried + steady.tried)
        found = self._without_the_rest(found, until=until)
        return replace(found, seconds=self.clock() - began)

    def explained(
        self, trace: RequestTrace, fault: ServedFault, known: Sequence[KnownServerCause], *, seconds: float
    ) -> Hunted:
        """Run a failing trace again, and find the known cause that explains it, if any."""
        began = self.clock()
        first = self._confirmed(trace, fault)
        if first.confirmed:
            first = self._explained(first, known, until=began + seconds)
        return replace(first, seconds=self.clock() - began)

    def _explained(self, first: Hunted, known: Sequence[KnownServerCause], *, until: float) -> Hunted:
        """Explain the failure by a known cause, or replace its trace by one that shows another bug beneath it."""
        explained = explain_trace(
            first.trace, first.fault, known, self._repeats(first), self.server.surface, over=self._over(until)
        )
        return replace(first, trace=explained.trace, cause=explained.cause)

    def _ablated(self, first: Hunted, *, until: float) -> Hunted:
        """Remove the features that the failure does not need from its trace."""
        steady = not first.flaky
        found = ablated(first.trace, self._repeats(first), self.server.surface, over=self._over(until), steady=steady)
        return replace(first, trace=found.trace, needs=found.needs, untried=found.untried)

    def _without_the_rest(self, found: Hunted, *, until: float) -> Hunted:
        """Remove features that the minimized trace has beside those that it needs, in the time that is left."""
        rest = ablated(found.trace, self._repeats(found), self.server.surface, over=self._over(until), kept=found.needs)
        present = features(rest.trace, self.server.surface)
        needs = tuple(name for name in present if name in {*found.needs, *rest.needs})
        return replace(found, trace=rest.trace, needs=needs, untried=rest.untried)

    def _over(self, until: float) -> Callable[[], bool]:
        return lambda: self.stopped() or self.clock() >= until

    def _repeats(self, first: Hunted) -> Callable[[RequestTrace], Rerunning]:
        """Return a function that runs a variant of a failing trace: until it passed or failed often enough."""

        def repeat(variant: RequestTrace) -> Rerunning:
            most = RUNS_TO_RATE if first.flaky else RUNS_TO_PASS
            times = runs = 0
            while runs < most and not self.stopped():
                runs += 1
                times += _alike(self.judge(variant), first.fault) is not None
                if times and (first.flaky or first.fault.kind is ServedKind.DIED):
                    break
            return Rerunning(times, runs)

        return repeat

    def _confirmed(self, trace: RequestTrace, fault: ServedFault) -> Hunted:
        """Run a failing trace until it failed again twice; a death, which costs a restart, once if at once."""
        times = runs = 0
        while runs < RUNS_TO_CONFIRM and not self.stopped():
            runs += 1
            again = _alike(self.judge(trace), fault)
            times += again is not None
            if times > 1 or (times == runs and fault.kind is ServedKind.DIED):
                break
        return Hunted(trace=trace, fault=fault, times=times, runs=runs)

    def _minimized(self, first: Hunted, wanted: int, *, until: float, seconds: float) -> Hunted:
        """Minimize a trace; a smaller one has to fail `wanted` times, of a few runs if the first is flaky."""
        fault = latest = first.fault
        tries = TRIES_WHEN_FLAKY if first.flaky else wanted

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
                if found is None and not first.flaky:
                    return False
            return False

        last = until - SHARE_TO_RATE * seconds
        # One bug must not slide into another: needed features stay, and none comes anew.
        surface, needs = self.server.surface, set(first.needs)
        present, most = set(features(first.trace, surface)), first.trace.most_at_once

        def allowed(each: RequestTrace) -> bool:
            return each.most_at_once <= most and needs <= set(features(each, surface)) <= present

        smallest, tried = shrink_trace(
            first.trace,
            fails,
            over=self._over(last),
            shown_by=fault.requests,
            allowed=allowed,
        )
        times, runs = self._rate(smallest, fault, until=until)
        if smallest == first.trace:
            return replace(first, times=first.times + times, runs=first.runs + runs, tried=tried)
        if runs and not times:
            # It failed by chance alone.
            return replace(first, tried=tried)
        # Each candidate that was taken failed once at least.
        return replace(first, trace=smallest, fault=latest, times=max(times, 1), runs=max(runs, 1), tried=tried)

    def _rate(self, trace: RequestTrace, fault: ServedFault, *, until: float) -> tuple[int, int]:
        """Run a minimized trace, and return the numbers of failures and of runs."""
        times = runs = 0
        while runs < RUNS_TO_RATE and fault.kind is not ServedKind.DIED:
            if self.stopped() or (runs and self.clock() >= until):
                break
            runs += 1
            times += _alike(self.judge(trace), fault) is not None
        return times, runs


def _alike(judged: Judged, fault: ServedFault) -> ServedFault | None:
    """Find the fault that may be the same bug; death may come as a hang, and the reverse."""
    deaths = {ServedKind.DIED, ServedKind.HUNG}
    for found in judged.faults:
        if found.like(fault) or {found.kind, fault.kind} <= deaths:
            return found
    return None
