"""The Runner, which judges cases in workers that may die."""

import atexit
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Self

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.backends import registry
from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.calls.trace import assemble
from attnfuzz.harness.sandbox.teams import Team, Teams, team_of
from attnfuzz.harness.verdict.describe import describe_any
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.tiers import ALPHA, Task, Tier
from attnfuzz.harness.workers.pool import HandlerError, Refused, Workers
from attnfuzz.harness.workers.postmortem import Death, explain
from attnfuzz.kernels.backend import Backend
from attnfuzz.reference import case_file, foreign
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import AnyCase
from attnfuzz.reference.device import Device
from attnfuzz.reference.user_error import UserError

TIMEOUT_SECONDS = 30.0
"""A small case takes milliseconds: what runs this long hangs."""

TRACE_SECONDS = 30.0
"""What a traced run may take longer: it writes down all that a step sees."""

EXPLAIN_SECONDS = 30.0
"""What a run may take longer whose failures are explained: the case is run several times."""

RUNS_IF_KILLED = 3
"""How often a case is run before it takes the blame for a SIGKILL: want of memory elsewhere, or an operator, kills too,
and may do so again.
"""

CONTRACTS = ("declared", "strict")

CASES = Path(".attnfuzz")
"""Where check() leaves the cases that fail, for the line that replays them."""


class CannotRun(UserError):
    """A backend that this machine can't run; the message says why, and what to do."""


class Runner:
    """Judges cases in isolated workers.

    `backends` are prepared before workers start, others at their first case. `contract` is "declared" or "strict",
    `alpha` the probability that a correct step is called wrong, the tiers in `without` are skipped, and `progress` is
    told of compilations. `device_index` says which GPU is this one's, among several (`Teams`).
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
        self._alpha = alpha
        self._without = tuple(without)
        self._strict = contract == "strict"
        self._timeout = timeout
        self._progress = progress
        self._ready: set[str] = set()
        self._last: Workers | None = None
        for name in backends:
            self._prepare(name)
        self._teams = Teams(device_index)
        for team in dict.fromkeys(map(team_of, backends)) or [Team(Device.CPU)]:
            # They start now, while others are still drawing their first case.
            self._workers(team)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self._teams.close()

    @property
    def restarts(self) -> int:
        """Workers that died so far."""
        return self._teams.restarts

    def start(self, backend: str) -> None:
        """Wait until a worker stands ready for `backend`. Raises as `verdict` does."""
        self._prepare(backend)
        self._workers(team_of(backend)).renew()

    def verdict(self, case: AnyCase, backend: str | None = None) -> Verdict:
        """Run a case on its backend, or on another one; a death becomes an observation.

        Raises:
            ImpossibleCase, UnknownBackend, BackendFileError, CannotRun, NoCompiler, BuildFailed: before anything runs.
            HandlerError, NurseryError: the harness failed, and not what it tests.

        """
        return self._run(case, backend or case.backend)

    @property
    def history(self) -> tuple[Case, ...]:
        """The cases that the worker of the last case had run before it, in order: about the last 1,000 of them."""
        if self._last is None:
            return ()
        tasks = (msgspec.json.decode(request, type=Task) for request in self._last.history)
        return tuple(replace(task.case, backend=task.backend) for task in tasks if isinstance(task.case, Case))

    def together(self, cases: Sequence[Case]) -> list[Verdict]:
        """Run cases of one backend at the same time, each in a worker of its own. Raises as `verdict`."""
        name = cases[0].backend
        backend = self._prepare(name)
        for case in cases:
            case_file.validate_any(case)
            reason = why_not(backend, case)
            if reason is not None:
                return [Verdict(unsupported=f"{name} does not support {reason}")] * len(cases)
        workers, patience = self._workers(team_of(name)), self._patience(name)
        tasks = [self._task(case, name) for case in cases]
        answers = workers.run_together(tasks, timeout=patience)
        for index, answer in enumerate(answers):
            if isinstance(answer, Death) and answer.killed_from_outside:
                # Many workers take much memory: only a death that comes back in a worker alone is the case's.
                answers[index] = self._answer(workers, tasks[index], patience)
        return [_judged(answer) for answer in answers]

    def trace(self, case: Case) -> tuple[Verdict, CallCase | None]:
        """Run a case, and give the literal calls of the step in which it ended; None if it launched nothing.

        Raises:
            Untraceable: one of the calls can't be written down. Otherwise as `verdict`.

        """
        # A file without a name, which the worker opens through this process: nothing stays if both are killed.
        with tempfile.TemporaryFile() as file:
            path = Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
            verdict = self._run(case, case.backend, str(path))
            return verdict, assemble(path, case)

    def explained(self, case: AnyCase, verdict: Verdict) -> Verdict:
        """Run a case that failed with `verdict` once more, and further runs of it, to explain its failures.

        Gives `verdict` where nothing in it can be explained, or the case did not fail alike. Raises as `verdict` does.
        """
        if not any(observation.tier not in ("", Tier.T0) and observation.row for observation in verdict.failures):
            return verdict
        try:
            again = self._run(case, case.backend, explained=True)
        except HandlerError:
            # A wrong number is a finding, also where looking for words about it breaks.
            self.renew()
            return verdict
        return again if _alike(again, verdict) else verdict

    def renew(self) -> None:
        """Have the next case run by a worker that has run nothing."""
        self._teams.renew()

    def _run(self, case: AnyCase, name: str, trace: str | None = None, *, explained: bool = False) -> Verdict:
        case_file.validate_any(case)
        backend = self._prepare(name)
        reason = why_not(backend, case)
        if reason is not None:
            return Verdict(unsupported=f"{name} does not support {reason}")
        self._last = self._workers(team_of(name))
        longer = (TRACE_SECONDS if trace else 0.0) + (EXPLAIN_SECONDS if explained else 0.0)
        task = self._task(case, name, trace, explained=explained)
        return _judged(self._answer(self._last, task, self._patience(name) + longer))

    def _task(self, case: AnyCase, name: str, trace: str | None = None, *, explained: bool = False) -> bytes:
        return msgspec.json.encode(
            Task(
                case=case,
                backend=name,
                strict=self._strict,
                alpha=self._alpha,
                without=self._without,
                trace=trace,
                explain=explained,
            )
        )

    def _patience(self, name: str) -> float:
        """The seconds after which a case on a backend hangs."""
        engine = engine_of(name)
        return self._timeout * (1.0 if engine is None else engine.patience)

    def _answer(self, workers: Workers, task: bytes, timeout: float) -> bytes | Death:
        try:
            answer = workers.run(task, timeout=timeout)
        except Refused:
            raise
        except HandlerError:
            # An earlier case may have left something behind that the harness stumbles over.
            workers.renew()
            answer = workers.run(task, timeout=timeout)
        for _ in range(RUNS_IF_KILLED - 1):
            if not (isinstance(answer, Death) and answer.killed_from_outside):
                break
            workers.renew()
            answer = workers.run(task, timeout=timeout)
        return answer

    def _workers(self, team: Team) -> Workers:
        # A team on a GPU is made ready for what was prepared so far.
        return self._teams.of(team, tuple(sorted(name for name in self._ready if team_of(name) == team)))

    def _prepare(self, name: str) -> Backend:
        """Compile what a backend needs, in sight: workers then find it in the cache."""
        backend = registry.resolve(name)
        if name in self._ready:
            return backend
        reason = backend.missing()
        if reason is not None:
            raise CannotRun(f"{name} can't run here: {reason}")
        backend.prepare(self._progress)
        self._ready.add(name)
        return backend


def _alike(one: Verdict, other: Verdict) -> bool:
    """Whether two runs of a case failed in the same ways."""
    return [(each.kind, each.place, each.step) for each in one.failures] == [
        (each.kind, each.place, each.step) for each in other.failures
    ]


def _judged(answer: bytes | Death) -> Verdict:
    """The verdict in a worker's answer."""
    if isinstance(answer, Death):
        return Verdict(observations=(explain(answer),))
    try:
        return foreign.decode_json(answer, Verdict)
    except msgspec.DecodeError:
        words = "what its worker answered is no verdict"
        return Verdict(observations=(Observation(kind=Kind.WORKER_DIED, place=words, message=words),))


def why_not(backend: Backend, case: AnyCase) -> str | None:
    """What of a case a backend does not support; None if it supports it all."""
    if isinstance(case, Case):
        return backend.capability.why_not(case)
    lacking = sorted({call.op for call in case.calls} - backend.ops.keys())
    return f"calls of {', '.join(lacking)}" if lacking else None


def render_failure(case: AnyCase, verdict: Verdict) -> str:
    """A failure for a person: kind, place and words of each observation, margins, and the case."""
    lines = []
    for observation in verdict.failures:
        where = f"step {observation.step}" if observation.step >= 0 else "no step on record"
        where += f" ({observation.mode})" if observation.mode else ""
        what = f"{observation.kind}: {observation.place}" if observation.place else observation.kind.value
        lines.append(f"{what}, {where}, {observation.kernel or 'no kernel on record'}")
        lines += [f"  {line}" for line in observation.message.splitlines()]
        if observation.margin is not None:
            lines.append(f"  {observation.tier}: {observation.margin:.3g} times the bound")
    if verdict.margins:
        margins = ", ".join(f"{tier} {margin:.2g}" for tier, margin in sorted(verdict.margins.items()))
        lines.append(f"margins: {margins}")
    return "\n".join([*lines, "", describe_any(case)])


@cache
def shared_runner() -> Runner:
    """The process's own Runner, for attnfuzz.check()."""
    runner = Runner()
    atexit.register(runner.close)
    return runner
