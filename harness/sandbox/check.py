"""The Runner, which judges cases in workers that may die."""

import atexit
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Self

import msgspec

from attnfuzz.harness.backends import registry
from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.calls.trace import assemble
from attnfuzz.harness.family import family_of
from attnfuzz.harness.sandbox.pace import CasePace
from attnfuzz.harness.sandbox.teams import Team, Teams, team_of
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.tiers import ALPHA, Tier
from attnfuzz.harness.workers.patience import Patience
from attnfuzz.harness.workers.postmortem import Death, explain
from attnfuzz.harness.workers.supervisor import HandlerError, Refused, Workers
from attnfuzz.harness.workers.task import Task, Watch
from attnfuzz.kernels.cuda.visible import visible
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.interface.library_call import COMPILES
from attnfuzz.reference import foreign
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import REPLAY, Call, CallCase
from attnfuzz.reference.case_types import decode_any
from attnfuzz.reference.device import Device
from attnfuzz.reference.user_error import UserError

TIMEOUT_SECONDS = 30.0
"""Longest silence of a case. Most backends have shorter limits (`pace.py`)."""

TRACE_SECONDS = 30.0
"""Extra time of a traced run, which writes all tensors of a step."""

EXPLAIN_SECONDS = 30.0
"""Extra time of a run with explanations, which runs the case several times."""

RUNS_IF_KILLED = 3
"""Number of runs of a case before it is blamed for a SIGKILL: lack of memory elsewhere, or an operator, kills too, and
may do so again.
"""

CONTRACTS = ("declared", "strict")

CASES = Path(".attnfuzz")
"""Folder in which check() saves failing cases for replay."""


class CannotRun(UserError):
    """A backend that this machine can't run. The message has the reason and the remedy."""


class Runner:
    """Judges cases in isolated workers.

    `backends` are prepared before workers start, others at their first case. `contract` is "declared" or "strict",
    `alpha` the probability that a correct step fails, the tiers in `without` are skipped, and `progress` gets lines
    about compilations. `device_index` selects the GPU among several (`Teams`).

    Attributes:
        last_on_gpu: The last case that ran on a GPU, if any did.

    """

    def __init__(
        self,
        backends: Sequence[str] = (),
        *,
        contract: str = "declared",
        alpha: float = ALPHA,
        without: Sequence[Tier] = (),
        timeout: float = TIMEOUT_SECONDS,
        progress: Callable[[str], None] = lambda _: None,
        device_index: int | None = None,
    ) -> None:
        if contract not in CONTRACTS:
            raise ValueError(f"contract {contract!r}: give one of {', '.join(CONTRACTS)}")
        if not 0 < alpha < 1:
            raise ValueError(f"alpha {alpha!r}: give a probability between 0 and 1")
        self._task = partial(Task, strict=contract == "strict", alpha=alpha, without=tuple(without))
        self._pace = CasePace(timeout)
        self._progress = progress
        self._ready: set[str] = set()
        self._last: Workers | None = None
        self.last_on_gpu: AnyCase | None = None
        self._teams = Teams(device_index)
        try:
            self._start(backends)
        except BaseException:
            self.close()
            raise

    def _start(self, backends: Sequence[str]) -> None:
        """Prepare backends, and start their workers, while the first case is drawn."""
        if not visible() and any(engine_of(name) is None for name in backends):
            # All workers are on the CPU: these start while backends are imported and prepared.
            self._teams.of(Team(Device.CPU))
        for name in backends:
            self._prepare(name)
        first_of: dict[Team, str | None] = {team_of(name): name for name in reversed(backends)}
        for team, first in (first_of or {Team(Device.CPU): None}).items():
            self._teams.of(team, first)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the workers."""
        self._teams.close()

    @property
    def restarts(self) -> int:
        """The number of workers that died so far."""
        return self._teams.restarts

    def start(self, backend: str) -> None:
        """Wait until a worker is ready for `backend`. Raises like `verdict`."""
        self._prepare(backend)
        self._teams.of(team_of(backend), backend).renew()

    def verdict(self, case: AnyCase, backend: str | None = None) -> Verdict:
        """Run a case on its backend, or on another one. A death becomes an observation.

        Raises:
            ImpossibleCase, UnknownBackend, BackendFileError, CannotRun, NoCompiler, BuildFailed: before anything runs.
            GpuGone: the GPU does not answer.
            HandlerError, NurseryError: the harness failed, not the tested code.
        """
        return self._run(case, backend or case.backend)

    @property
    def history(self) -> tuple[AnyCase, ...]:
        """The cases that the worker of the last case had run before it, in order: at most about 1,000."""
        if self._last is None:
            return ()
        tasks = (msgspec.json.decode(request, type=Task, dec_hook=decode_any) for request in self._last.history)
        return tuple(task.case.having(backend=task.backend) for task in tasks if task.case.searchable)

    def together(self, cases: Sequence[AnyCase]) -> list[Verdict]:
        """Run cases of one backend at the same time, each in a separate worker. Raises like `verdict`."""
        name = cases[0].backend
        backend = self._prepare(name)
        for case in cases:
            case.validate()
            reason = why_not(backend, case)
            if reason is not None:
                return [Verdict(unsupported=f"{name} does not support {reason}")] * len(cases)
        workers, capability = self._teams.of(team_of(name), name), backend.capability
        patience = self._pace.patience(name, capability.device, capability.patience)
        tasks = [msgspec.json.encode(self._task(case=case, backend=name)) for case in cases]
        answers = workers.run_together(tasks, timeout=patience)
        for index, answer in enumerate(answers):
            if isinstance(answer, Death) and answer.killed_from_outside:
                # Many workers take much memory: blame the case only for a death that recurs alone.
                answers[index] = _answer(workers, tasks[index], patience)
        return [_judged(answer) for answer in answers]

    def trace(self, case: AnyCase) -> tuple[Verdict, CallCase | None]:
        """Run a case, and return its verdict and the literal calls of its last step, or None if it launched nothing.

        Raises:
            Untraceable: one of the calls can't be serialized. Otherwise like `verdict`.
        """
        verdict, _, calls = self.trace_both(case, holes=False)
        return verdict, calls

    def trace_both(
        self, case: AnyCase, *, holes: bool = True, whole: bool = False
    ) -> tuple[Verdict, CallCase | None, CallCase | None]:
        """Trace like `trace`; the calls of the first run come before those of the related run if these two differ.

        Buffers may have `holes`, which only a script can fill. With `whole`, the calls are those of all steps.
        """
        # An anonymous file, opened by the worker through this process: nothing remains if both are killed.
        with tempfile.TemporaryFile() as file:
            path = Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
            verdict = self._run(case, case.backend, str(path), whole=whole)
            seen = next(iter(verdict.failures), None)
            differ = seen is not None and seen.tier == Tier.T6
            first = assemble(path, case, seen.step, holes=holes) if seen is not None and differ else None
            return verdict, first, assemble(path, case, holes=holes)

    def explained(self, case: AnyCase, verdict: Verdict) -> Verdict:
        """Run a case that failed with `verdict`, and variants of it, to explain its failures.

        Returns `verdict` if nothing in it can be explained, or the case did not fail alike. Raises like `verdict`.
        """
        if not any(_may_be_explained(each) for each in verdict.failures):
            return verdict
        try:
            again = self._run(case, case.backend, explained=True)
        except HandlerError:
            # A wrong number is a finding even if explaining it breaks.
            self.renew()
            return verdict
        return again if _alike(again, verdict) else verdict

    def watched(self, case: AnyCase, watch: Watch) -> Verdict:
        """Run a case like `verdict`, with `Verdict.watched` unless its worker died."""
        return self._run(case, case.backend, watch=watch)

    def renew(self) -> None:
        """Use a fresh worker for the next case."""
        self._teams.renew()

    def _run(
        self,
        case: AnyCase,
        name: str,
        trace: str | None = None,
        *,
        whole: bool = False,
        explained: bool = False,
        watch: Watch | None = None,
    ) -> Verdict:
        case.validate()
        backend = self._prepare(name)
        capability, reason = backend.capability, why_not(backend, case)
        if reason is not None:
            return Verdict(unsupported=f"{name} does not support {reason}")
        self._last = self._teams.of(team_of(name), name)
        if case.searchable and capability.device is Device.CUDA:
            self.last_on_gpu = case.having(backend=name)
        more = (TRACE_SECONDS if trace else 0.0) + (EXPLAIN_SECONDS if explained else 0.0)
        task = self._task(case=case, backend=name, trace=trace, whole=whole, explain=explained, watch=watch)
        patience = self._pace.patience(name, capability.device, capability.patience, more=more)
        started = time.monotonic()
        answer = _answer(self._last, msgspec.json.encode(task), patience)
        if not (more or isinstance(answer, Death)):
            self._pace.add(name, time.monotonic() - started)
        return _judged(answer)

    def _prepare(self, name: str) -> Backend:
        """Compile a backend's needs while showing progress, so that workers find them in the cache."""
        backend = registry.resolve(name)
        if name in self._ready:
            return backend
        reason = backend.missing()
        if reason is not None:
            raise CannotRun(f"{name} can't run here: {reason}")
        backend.prepare(self._progress)
        self._ready.add(name)
        return backend


def _may_be_explained(observation: Observation) -> bool:
    """Return whether a failure has a row, which numbers explain: those of another row may lie in one without keys."""
    statistical = observation.tier not in ("", Tier.T0) or observation.kind is Kind.EMPTY_ROW
    return statistical and observation.row is not None


def _answer(workers: Workers, task: bytes, patience: Patience) -> bytes | Death:
    """Run a task. It is run again if the harness fails, or if its worker is killed from outside."""
    try:
        answer = workers.run(task, timeout=patience)
    except Refused:
        raise
    except HandlerError:
        # An earlier case may have left state that breaks the harness.
        workers.renew()
        answer = workers.run(task, timeout=patience)
    for _ in range(RUNS_IF_KILLED - 1):
        if not (isinstance(answer, Death) and answer.killed_from_outside):
            break
        workers.renew()
        answer = workers.run(task, timeout=patience)
    return answer


def _alike(one: Verdict, other: Verdict) -> bool:
    """Return whether two runs of a case failed in the same ways."""
    return [(each.kind, each.place, each.step) for each in one.failures] == [
        (each.kind, each.place, each.step) for each in other.failures
    ]


def _judged(answer: bytes | Death) -> Verdict:
    """Return the verdict in a worker's answer."""
    if isinstance(answer, Death):
        return Verdict(observations=(explain(answer),))
    try:
        return foreign.decode_json(answer, Verdict)
    except msgspec.DecodeError:
        words = "its worker's reply is not a verdict"
        return Verdict(observations=(Observation(kind=Kind.WORKER_DIED, place=words, message=words),))


def why_not(backend: Backend, case: AnyCase) -> str | None:
    """Return the features of a case that a backend does not support, or None if it supports all."""
    if not isinstance(case, CallCase):
        return backend.capability.why_not(case)
    lacking = sorted({call.op for call in case.calls} - {REPLAY} - backend.ops.keys())
    if lacking:
        return f"calls of {', '.join(lacking)}"
    wrong = (words for call in case.calls if (words := _misused(backend, call)) is not None)
    return next(wrong, None)


def _misused(backend: Backend, call: Call) -> str | None:
    """Return how a call differs from those of its op, or None."""
    library = None if call.op == REPLAY else backend.ops[call.op].library
    if library is None:
        used = call.on or call.makes or call.held
        return f"objects in calls of {call.op}" if used else None
    if library.takes_object is not bool(call.on):
        return f"a call of {call.op} {'without' if library.takes_object else 'on'} an object"
    if library.makes is not bool(call.makes):
        return f"a call of {call.op} that {'makes no' if library.makes else 'makes an'} object"
    compiled = sorted(COMPILES.intersection(call.arguments))
    return f"{compiled[0]} in calls of {call.op}" if compiled else None


def render_failure(case: AnyCase, verdict: Verdict) -> str:
    """Return a readable failure: kind, place and message of each observation, margins, and the case."""
    lines = []
    for observation in verdict.failures:
        where = f"step {observation.step}" if observation.step >= 0 else "no step on record"
        where += f" ({observation.mode})" if observation.mode else ""
        kind = f"{observation.kind}: {observation.place}" if observation.place else observation.kind.value
        lines.append(f"{kind}, {where}, {observation.kernel or 'no kernel on record'}")
        lines += [f"  {line}" for line in observation.message.splitlines()]
        if observation.margin is not None:
            lines.append(f"  {observation.tier}: {observation.margin:.3g} times the bound")
    if verdict.margins:
        margins = ", ".join(f"{tier} {margin:.2g}" for tier, margin in sorted(verdict.margins.items()))
        lines.append(f"largest margins (error / bound): {margins}")
    return "\n".join([*lines, "", family_of(case).describe(case)])


@cache
def shared_runner() -> Runner:
    """Return the process's own Runner, for attnfuzz.check()."""
    runner = Runner()
    atexit.register(runner.close)
    return runner
