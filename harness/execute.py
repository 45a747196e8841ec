"""What a worker does with a case: run each step on guarded memory and judge what it gave, right after it."""

import contextlib
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TextIO, TypeVar

import msgspec
import torch

from attnfuzz.harness import registry
from attnfuzz.harness.call_session import CallSession, answered_geometry
from attnfuzz.harness.failures import Kind, Observation, Verdict
from attnfuzz.harness.judge.judge import judge
from attnfuzz.harness.launcher import JournalingLauncher, LaunchError
from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.memory.plain import AnyMemory
from attnfuzz.harness.memory.reservation import OutOfMemory
from attnfuzz.harness.trace import FileTracer
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.kernels.backend import Backend, Bench, Output, Session, Unsupported
from attnfuzz.kernels.native.build import BuildFailed
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case
from attnfuzz.reference.geometry import Geometry

REJECTIONS = (ValueError, TypeError, NotImplementedError)
"""What a kernel raises for arguments that it does not take."""

_NOT_THE_BACKENDS = (Unsupported, LaunchError, OutOfMemory)
"""What comes through a backend without being a failure of it: its own clear rejection, and faults of the harness."""

_Made = TypeVar("_Made")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A case to run, and how to judge it. `backend` is the one that runs it, whatever the case says.

    `trace` is a file that its calls are written to.
    """

    case: Case | CallCase
    backend: str
    strict: bool = False
    trace: str | None = None


def warm() -> None:
    """Load, before workers are forked, what all of them need and what starts no thread."""
    torch.set_num_threads(1)
    torch.nn.functional.softmax(torch.zeros(2, 2, dtype=torch.float64) @ torch.ones(2, 2, dtype=torch.float64), dim=-1)
    for backend in registry.builtin().values():
        if backend.missing() is None:
            # Whoever asks for this backend is told; a case of another one must run all the same.
            with contextlib.suppress(BuildFailed):
                backend.prepare(lambda _: None)


def handle(request: bytes, journal: Journal) -> bytes:
    """Answer an encoded Task with an encoded Verdict."""
    task = msgspec.json.decode(request, type=Task)
    if task.trace is None:
        return msgspec.json.encode(Execution(task, journal.write).run())
    with Path(task.trace).open("w") as file:
        return msgspec.json.encode(Execution(task, journal.write, file).run())


@cache
def _arena() -> Arena:
    """The process's arena: slabs are reused from case to case."""
    return Arena()


@cache
def _backend(name: str) -> Backend:
    """A backend, prepared in this process."""
    backend = registry.resolve(name)
    backend.prepare(lambda _: None)
    return backend


class Execution:
    """One run of one case, on guarded memory unless `memory` is given. `write` puts an entry into the journal."""

    def __init__(
        self,
        task: Task,
        write: Callable[[bytes], None],
        trace: TextIO | None = None,
        memory: AnyMemory | None = None,
    ) -> None:
        case = task.case
        self._case, self._strict, self._write = case, task.strict, write
        self._backend = _backend(task.backend)
        self._memory = GuardedMemory(_arena(), case.guard, case.outputs) if memory is None else memory
        self._tracer = None if trace is None else FileTracer(trace, self._memory, case.outputs)
        self._launcher = JournalingLauncher(self._memory, write, self._tracer)
        self._modes = [step.mode.value for step in case.steps] if isinstance(case, Case) else [case.mode]
        self._observations: list[Observation] = []
        self._margins: dict[str, float] = {}
        self._seconds = {"place": 0.0, "kernel": 0.0, "reference": 0.0, "judge": 0.0}
        self._rows = 0

    def run(self) -> Verdict:
        """Run the steps up to the first that fails."""
        unsupported = None
        start = time.perf_counter()
        try:
            session = self._open(Bench(self._memory, self._launcher, torch.device("cpu")))
            for index, mode in enumerate(self._modes):
                if any(not observation.gap for observation in self._observations):
                    break
                assert session is not None
                self._step(session, index, mode)
        except Unsupported as reason:
            unsupported = str(reason)
        finally:
            self._memory.release()
        # What is neither kernel nor judge is drawing values, planning and placing tensors.
        self._seconds["place"] = time.perf_counter() - start - sum(self._seconds.values())
        return Verdict(
            observations=tuple(self._observations),
            margins=self._margins,
            seconds=self._seconds,
            rows=self._rows,
            unsupported=unsupported,
        )

    def _open(self, bench: Bench) -> Session | None:
        case = self._case
        if isinstance(case, CallCase):
            return CallSession(case, self._backend, bench)
        return self._attempt(lambda: self._backend.open(case, bench), -1, "")

    def _step(self, session: Session, index: int, mode: str) -> None:
        self._launcher.begin_step(index, mode)
        output = self._attempt(lambda: session.forward(index), index, mode)
        self._seconds["kernel"] += self._launcher.kernel_seconds
        self._launcher.kernel_seconds = 0.0
        self._observations += self._launcher.observations
        self._observations += self._damage(index, mode)
        if output is None:
            return
        # A death from now on is no kernel's, and must not be blamed on the one that was launched last.
        self._write(b"")
        geometry = self._case.geometry if isinstance(self._case, Case) else answered_geometry(self._case)
        if self._tracer is not None:
            self._tracer.output(output, geometry)
        self._judge(output, geometry, index, mode)

    def _attempt(self, work: Callable[[], _Made], index: int, mode: str) -> _Made | None:
        """What the backend makes; None if it raises, which is observed."""
        try:
            return work()
        except _NOT_THE_BACKENDS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever else a backend raises is a finding
            self._observations.append(self._raised(error, index, mode))
            return None

    def _raised(self, error: Exception, index: int, mode: str) -> Observation:
        """An exception. A kernel that rejects what its capability promises is told apart from code that breaks."""
        rejected = error is self._launcher.raised and isinstance(error, REJECTIONS)
        return Observation(
            kind=Kind.UNEXPECTED_REJECTION if rejected else Kind.RAISED,
            place=type(error).__name__,
            message=f"{type(error).__name__}: {error}",
            step=index,
            mode=mode,
            kernel=self._launcher.kernel,
        )

    def _damage(self, index: int, mode: str) -> list[Observation]:
        return [
            Observation(
                kind=Kind.CANARY_OVERWRITTEN,
                place=damage.name,
                message=str(damage),
                step=index,
                mode=mode,
                kernel=self._launcher.kernel,
            )
            for damage in self._memory.damage()
        ]

    def _judge(self, output: Output, geometry: Geometry, index: int, mode: str) -> None:
        judgement = judge(
            output,
            geometry=geometry,
            contract=self._backend.contract,
            noise=self._backend.noise(geometry.dtype),
            strict=self._strict,
            step=index,
            mode=mode,
            kernel=self._launcher.kernel,
        )
        self._observations += judgement.observations
        for tier, margin in judgement.margins.items():
            self._margins[tier] = max(margin, self._margins.get(tier, 0.0))
        self._rows += judgement.rows
        self._seconds["reference"] += judgement.reference_seconds
        self._seconds["judge"] += judgement.judge_seconds
