"""The five stages for a failing trace: it is confirmed, attributed, minimized, rated and described."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from attnfuzz.harness.serve.ablation import Rerunning, ablated, features
from attnfuzz.harness.serve.check import Judged
from attnfuzz.harness.serve.judging import ServedFault, ServedKind
from attnfuzz.harness.serve.predictions import KnownServerCause, attribute_trace
from attnfuzz.harness.serve.shrink import shrink_trace
from attnfuzz.harness.serve.surface import Surface
from attnfuzz.harness.serve.trace import RequestTrace

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


class TraceStages:
    """The stages for a trace that `judge` runs on a server with these sizes. They take up to `seconds` from now.

    `runs` is the number of runs to confirm it.
    """

    def __init__(
        self,
        judge: Callable[[RequestTrace], Judged],
        surface: Surface,
        known: Sequence[KnownServerCause],
        *,
        seconds: float,
        stopped: Callable[[], bool],
        clock: Callable[[], float],
        share_to_attribute: float = SHARE_TO_ABLATE,
    ) -> None:
        self._judge, self._surface, self._known, self._stopped, self._clock = judge, surface, known, stopped, clock
        self._seconds, self._share, self._began = seconds, share_to_attribute, clock()
        self.runs = 0

    def confirm(self, suspected: Hunted) -> Hunted | None:
        """Run a failing trace until it failed again twice; a death, which costs a restart, once if at once."""
        times, self.runs = 0, 0
        while self.runs < RUNS_TO_CONFIRM and not self._stopped():
            self.runs += 1
            times += alike_in(self._judge(suspected.trace), suspected.fault) is not None
            if times > 1 or (times == self.runs and suspected.fault.kind is ServedKind.DIED):
                break
        return replace(suspected, times=times, runs=self.runs) if times else None

    def attribute(self, failing: Hunted) -> tuple[KnownServerCause | None, Hunted]:
        """Find the known cause of a failure, or the trace in which something else is beneath a known one."""
        over, repeat = self._over(self._share), self._repeats(failing)
        cause, trace = attribute_trace(failing.trace, failing.fault, self._known, repeat, self._surface, over=over)
        return cause, replace(failing, trace=trace)

    def reduce(self, failing: Hunted, cause: KnownServerCause | None) -> Hunted:
        """Minimize a failure that no known cause explains, without the features that it does not need."""
        if cause is not None:
            return failing
        over, repeat = self._over(self._share), self._repeats(failing)
        found = ablated(failing.trace, repeat, self._surface, over=over, steady=not failing.flaky)
        plain = replace(failing, trace=found.trace, needs=found.needs, untried=found.untried)
        # One that fails by chance is not taken for one that always fails. A death is: each costs a restart.
        wanted = 1 if plain.flaky or plain.fault.kind is ServedKind.DIED else 2
        smallest = self._minimized(plain, wanted)
        if smallest.flaky and wanted > 1:
            # Minimizing has slid into a failure by chance: each candidate has to fail more often.
            steady = self._minimized(plain, RUNS_TO_RATE)
            better = steady.trace != plain.trace and steady.times * smallest.runs > smallest.times * steady.runs
            smallest = replace(steady if better else smallest, tried=smallest.tried + steady.tried)
        return smallest

    def confirm_again(self, failing: Hunted, smallest: Hunted) -> Hunted | None:
        """Return the smallest failure, whose trace was run to know its rate."""
        return smallest

    def describe(self, failing: Hunted, cause: KnownServerCause | None) -> Hunted:
        """Find the features that the smallest trace needs beside those known so far, or name its cause."""
        if cause is not None:
            return replace(failing, cause=cause.name, seconds=self._clock() - self._began)
        repeat = self._repeats(failing)
        rest = ablated(failing.trace, repeat, self._surface, over=self._over(1.0), kept=failing.needs)
        present = features(rest.trace, self._surface)
        needs = tuple(name for name in present if name in {*failing.needs, *rest.needs})
        seconds = self._clock() - self._began
        return replace(failing, trace=rest.trace, needs=needs, untried=rest.untried, seconds=seconds)

    def _over(self, share: float) -> Callable[[], bool]:
        until = self._began + share * self._seconds
        return lambda: self._stopped() or self._clock() >= until

    def _repeats(self, failing: Hunted) -> Callable[[RequestTrace], Rerunning]:
        """Return a function that runs a variant until it passed often enough, or failed as often as it has to."""

        def repeat(variant: RequestTrace) -> Rerunning:
            most = RUNS_TO_RATE if failing.flaky else RUNS_TO_PASS
            times = runs = 0
            while runs < most and not self._stopped():
                runs += 1
                times += alike_in(self._judge(variant), failing.fault) is not None
                if times and (failing.flaky or failing.fault.kind is ServedKind.DIED):
                    break
            return Rerunning(times, runs)

        return repeat

    def _minimized(self, first: Hunted, wanted: int) -> Hunted:
        """Minimize a trace; a smaller one has to fail `wanted` times, of a few runs if the first is flaky."""
        fault = latest = first.fault
        tries = TRIES_WHEN_FLAKY if first.flaky else wanted

        def fails(candidate: RequestTrace) -> bool:
            nonlocal latest
            seen = 0
            for _ in range(tries):
                if self._stopped():
                    return False
                found = alike_in(self._judge(candidate), fault)
                seen += found is not None
                if found is not None and seen == wanted:
                    latest = found
                    return True
                if found is None and not first.flaky:
                    return False
            return False

        # One bug must not slide into another: needed features stay, and none comes anew.
        surface, needs = self._surface, set(first.needs)
        present, most = set(features(first.trace, surface)), first.trace.most_at_once

        def allowed(each: RequestTrace) -> bool:
            return each.most_at_once <= most and needs <= set(features(each, surface)) <= present

        smallest, tried = shrink_trace(
            first.trace,
            fails,
            over=self._over(1 - SHARE_TO_RATE),
            shown_by=fault.requests,
            allowed=allowed,
        )
        times, runs = self._rate(smallest, fault)
        if smallest == first.trace:
            return replace(first, times=first.times + times, runs=first.runs + runs, tried=tried)
        if runs and not times:
            # It failed by chance alone.
            return replace(first, tried=tried)
        # Each candidate that was taken failed once at least.
        return replace(first, trace=smallest, fault=latest, times=max(times, 1), runs=max(runs, 1), tried=tried)

    def _rate(self, trace: RequestTrace, fault: ServedFault) -> tuple[int, int]:
        """Run a minimized trace, and return the numbers of failures and of runs."""
        over, times, runs = self._over(1.0), 0, 0
        while runs < RUNS_TO_RATE and fault.kind is not ServedKind.DIED:
            if self._stopped() or (runs and over()):
                break
            runs += 1
            times += alike_in(self._judge(trace), fault) is not None
        return times, runs


def alike_in(judged: Judged, fault: ServedFault) -> ServedFault | None:
    """Return the fault that may be the same bug, or None; death may come as a hang, and the reverse."""
    deaths = {ServedKind.DIED, ServedKind.HUNG}
    for found in judged.faults:
        if found.like(fault) or {found.kind, fault.kind} <= deaths:
            return found
    return None
