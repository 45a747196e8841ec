"""check(case): the whole interface, and the Runner below it that judges cases in workers that may die."""

import atexit
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from attnfuzz.harness import registry
from attnfuzz.harness.describe import describe
from attnfuzz.harness.execute import Task
from attnfuzz.harness.failures import FAILURES, Kind, Observation, Verdict
from attnfuzz.harness.trace import assemble
from attnfuzz.harness.workers.death import Death
from attnfuzz.harness.workers.pool import Workers
from attnfuzz.harness.workers.postmortem import explain
from attnfuzz.kernels.backend import Backend
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import AnyCase

TIMEOUT_SECONDS = 30.0
"""A small case takes milliseconds: what runs this long hangs."""

STATISTICAL = frozenset({Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH})
"""Kinds that chance can produce, with the probability that the judge's alpha states."""

FRESH_SEEDS = 3
"""Value seeds with which a statistical failure is tried again."""

CASES = Path(".attnfuzz")
"""Where check() leaves the cases that fail, for the line that replays them."""


class CannotRun(RuntimeError):  # noqa: N818 - reads as what happened
    """A backend that this machine can't run; the message says why, and what to do."""


class Runner:
    """Judges cases in isolated workers. `progress` is told of compilations."""

    def __init__(
        self,
        backends: Sequence[str] = (),
        *,
        contract: str = "declared",
        timeout: float = TIMEOUT_SECONDS,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._strict = contract == "strict"
        self._timeout = timeout
        self._progress = progress
        self._ready: set[str] = set()
        for name in backends:
            self._prepare(name)
        self._workers = Workers(
            "attnfuzz.harness.execute:handle", preload=["attnfuzz.harness.execute:warm"]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    @property
    def restarts(self) -> int:
        """Workers that died so far."""
        return self._workers.restarts

    def verdict(self, case: AnyCase, backend: str | None = None) -> Verdict:
        """Run a case on its backend, or on another one; a death becomes an observation.

        Raises:
            ImpossibleCase, UnknownBackend, BackendFileError, CannotRun: before anything runs.
        """
        return self._run(case, backend or case.backend)

    def trace(self, case: Case) -> tuple[Verdict, CallCase | None]:
        """Run a case, and give the literal calls of the step in which it ended; None if it launched nothing."""
        with tempfile.TemporaryDirectory(prefix="attnfuzz-trace-") as folder:
            path = Path(folder) / "trace.ndjson"
            verdict = self._run(case, case.backend, str(path))
            return verdict, assemble(path, case, case.backend) if path.exists() else None

    def _run(self, case: AnyCase, name: str, trace: str | None = None) -> Verdict:
        case_file.validate_any(case)
        self._prepare(name)
        reason = why_not(registry.resolve(name), case)
        if reason is not None:
            return Verdict(unsupported=f"{name} does not support {reason}")
        task = msgspec.json.encode(Task(case=case, backend=name, strict=self._strict, trace=trace))
        answer = self._workers.run(task, timeout=self._timeout)
        if isinstance(answer, Death):
            return Verdict(observations=(explain(answer),))
        return msgspec.json.decode(answer, type=Verdict)

    def confirm(self, case: Case, observation: Observation) -> bool:
        """Whether a failure comes back in a fresh worker.

        What is exact is tried with the same seed; what chance can produce, with fresh ones: the same would only repeat
        a false alarm. A hang is run alone anyway: each job waits for its own worker.
        """
        self._workers.renew()
        cases = [case]
        if observation.kind in STATISTICAL:
            cases = [msgspec.structs.replace(case, seed=case.seed + offset) for offset in range(1, FRESH_SEEDS + 1)]
        return any(
            again.kind is observation.kind for fresh in cases for again in self.verdict(fresh).observations
        )

    def _prepare(self, name: str) -> None:
        if name in self._ready:
            return
        backend = registry.resolve(name)
        reason = backend.missing()
        if reason is not None:
            raise CannotRun(f"{name} can't run here: {reason}")
        backend.prepare(self._progress)
        self._ready.add(name)


def why_not(backend: Backend, case: AnyCase) -> str | None:
    """What of a case a backend does not support; None if it supports it all."""
    if isinstance(case, Case):
        return backend.capability.why_not(case)
    lacking = sorted({call.op for call in case.calls} - backend.ops.keys())
    return f"calls of {', '.join(lacking)}" if lacking else None


def render_failure(case: Case, verdict: Verdict) -> str:
    """A failure for a person: kind, place and words of each observation, margins, and the case."""
    lines = []
    for observation in verdict.failures:
        where = f"step {observation.step} ({observation.mode})" if observation.step >= 0 else "no step on record"
        lines.append(f"{observation.kind}: {observation.place}, {where}, {observation.kernel or 'no kernel on record'}")
        lines += [f"  {line}" for line in observation.message.splitlines()]
        if observation.margin is not None:
            lines.append(f"  {observation.tier}: {observation.margin:.3g} times the bound")
    if verdict.margins:
        margins = ", ".join(f"{tier} {margin:.2g}" for tier, margin in sorted(verdict.margins.items()))
        lines.append(f"margins: {margins}")
    return "\n".join([*lines, "", describe(case)])


@cache
def shared_runner() -> Runner:
    """The process's own Runner, for check()."""
    runner = Runner()
    atexit.register(runner.close)
    return runner


def check(case: Case) -> None:
    """Run a case and raise its first failure as one of attnfuzz.harness.failures.FAILURES.

    The case is left in .attnfuzz/ under a name that only depends on the failure: while Hypothesis shrinks, smaller
    ones replace larger ones, and the line at the end of the message replays the smallest.
    """
    __tracebackhide__ = True
    verdict = shared_runner().verdict(case)
    if not verdict.failures:
        return
    first = verdict.failures[0]
    CASES.mkdir(exist_ok=True)
    name = f"{case.backend}-{first.kind}-{first.place}".replace("/", "_").replace(" ", "_").replace(":", "_")
    path = CASES / f"{name}.json"
    case_file.save(path, case)
    raise FAILURES[first.kind](first, f"{render_failure(case, verdict)}\nreplay: attnfuzz replay {path}")
