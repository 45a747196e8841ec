"""Shrinking a failing case of either kind: its first failure is pinned, and cases that fail alike are kept."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.reduce import reduce_calls
from attnfuzz.harness.sandbox.case_runner import CaseRunner
from attnfuzz.harness.sandbox.confirm import comes_back
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.needs import cause_of
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.settle import settle
from attnfuzz.harness.search.smallest import reduced
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.device import Device

SMALLER = "The case was then minimized: pages, lengths and names above are those of the original case."
"""The last note of a case that had notes."""


class Shrunk(msgspec.Struct, frozen=True, kw_only=True):
    """The result of shrinking: the smallest case that fails alike, and comes back in a fresh worker.

    `observation` is the failure of `case`, `runs` the number of cases run. `steady` is False if not even the first case
    comes back.
    """

    case: AnyCase
    observation: Observation
    runs: int
    steady: bool = True


class CaseRejected(ValueError):
    """The backend rejects the case. The message is the reason."""


def shrink(
    case: AnyCase, runner: CaseRunner[Any], *, budget: ShrinkBudget, repeat: int = 1, same_kernels: bool = False
) -> Shrunk | None:
    """Return the smallest case that fails like `case`, or None if it passes.

    With `same_kernels`, calls keep the shape for which kernels are compiled, as on a GPU's backends. With `repeat`,
    each case is run up to `repeat` times, and fails if one run does: for races.

    The same case and verdicts give the same result, as long as the budget lasts. Raises Unsupported.
    """
    runs = _Runs(runner, repeat)
    first = runs.until(case, lambda verdict: bool(verdict.failures))
    if first.unsupported is not None:
        raise CaseRejected(first.unsupported)
    if not first.failures:
        return None
    fingerprint = Fingerprint.of(case.backend, first.failures[0])
    runs.alone = _keeps_state(case, first.failures[0], runs)

    def run(candidate: AnyCase) -> Verdict:
        return runs.until(candidate, lambda verdict: fingerprint.among(verdict.failures) is not None)

    pinned: Pinned[Any] = Pinned(fingerprint, case, first, run=run, budget=budget, aside=lambda _case, _verdict: None)
    found = settle(_Stages(runs, budget.runs, same_kernels=same_kernels), pinned)
    return found or Shrunk(case=case, observation=first.failures[0], runs=runs.count, steady=False)


class _Runs:
    """A runner that counts runs, and runs a case up to `repeat` times if its failure is a race.

    Each run is `alone` in a fresh worker if the backend keeps state from case to case.
    """

    def __init__(self, runner: CaseRunner[Any], repeat: int) -> None:
        self._runner, self.repeat = runner, repeat
        self.count, self.alone = 0, False

    def verdict(self, case: AnyCase) -> Verdict:
        self.count += 1
        if self.alone:
            self._runner.renew()
        return self._runner.verdict(case)

    def renew(self) -> None:
        self._runner.renew()

    def until(self, case: AnyCase, enough: Callable[[Verdict], bool]) -> Verdict:
        """Run until `enough` accepts a verdict, and return that verdict, or the last one."""
        verdict = self.verdict(case)
        for _ in range(self.repeat - 1):
            if enough(verdict) or verdict.unsupported is not None:
                break
            verdict = self.verdict(case)
        return verdict


def _keeps_state(case: AnyCase, seen: Observation, runs: _Runs) -> bool:
    """Return whether the failing step alone fails after the whole case, and passes in a fresh worker.

    Smaller cases would then fail or pass by the cases before them. On a GPU, workers start too slowly to tell.
    """
    if not isinstance(case, Case) or len(case.steps) < 2 or resolve(case.backend).capability.device is Device.CUDA:
        return False
    alone = replace(case, steps=(case.steps[seen.step],), past=(), relation=None)
    if not possible(alone) or not runs.verdict(alone).failures:
        return False
    runs.renew()
    return not runs.verdict(alone).failures


class _Stages:
    """The stages for a case that was seen to fail. No cause is known, and nothing but the case is described."""

    def __init__(self, runs: _Runs, budget: int, *, same_kernels: bool) -> None:
        self._runs, self._budget, self._same_kernels = runs, budget, same_kernels

    def confirm(self, suspected: Pinned[Any]) -> Pinned[Any] | None:
        return suspected

    def attribute(self, failing: Pinned[Any]) -> tuple[KnownCause | None, Pinned[Any]]:
        return None, failing

    def reduce(self, failing: Pinned[Any], cause: KnownCause | None) -> Pinned[Any]:
        # Making candidates of a large case is slow, and has to end with the time.
        def stop() -> bool:
            return failing.spent

        if failing.spent:
            return failing
        case, capability = failing.case, resolve(failing.case.backend).capability
        if isinstance(case, CallCase):
            same_kernels = self._same_kernels or capability.device is Device.CUDA
            less = reduce_calls(case, failing.fails, same_kernels=same_kernels, stop=stop, budget=self._budget)
            return failing.reduced_to(less, failing.clues)
        needs = cause_of(case, failing, lambda each: capability.why_not(each) is None)
        small, clues = reduced(needs, failing, capability=capability, stop=stop, runs=self._budget, plainly=True)
        return failing.reduced_to(small, clues)

    def confirm_again(self, failing: Pinned[Any], smallest: Pinned[Any]) -> Pinned[Any] | None:
        for each in (smallest, failing):
            if any(_again(self._runs, each.case, each.failure) for _ in range(self._runs.repeat)):
                return each
        return None

    def describe(self, failing: Pinned[Any], cause: KnownCause | None) -> Shrunk:
        case = _noted(failing.case, failing.first)
        return Shrunk(case=case, observation=failing.failure, runs=self._runs.count)


def _noted(smaller: AnyCase, case: AnyCase) -> AnyCase:
    """Return the smaller case, with a note that its notes are about the larger one."""
    if not isinstance(smaller, CallCase) or smaller == case or not smaller.notes or SMALLER in smaller.notes:
        return smaller
    return replace(smaller, notes=(*smaller.notes, SMALLER))


def _again(runs: _Runs, case: AnyCase, observation: Observation) -> bool:
    """Return whether a failure comes back in a fresh worker. Calls have no value seeds to vary."""
    if not isinstance(case, CallCase):
        return comes_back(runs, case, observation)
    runs.renew()
    return Fingerprint.of(case.backend, observation).among(runs.verdict(case).failures) is not None
