"""Run a case: each step on guarded memory, judged right after it.

If a case with a relation passes, its related case is run in memory of its own, and the two are compared.
"""

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO, TypeVar

import msgspec
import torch
from msgspec.structs import replace

from attnfuzz.harness.backends import registry
from attnfuzz.harness.backends.engines import engines
from attnfuzz.harness.calls.literal_calls import CallSession, answered_geometry
from attnfuzz.harness.calls.trace import FileTracer
from attnfuzz.harness.inside.launcher import Launched, LaunchError
from attnfuzz.harness.inside.places import on_host, place_of
from attnfuzz.harness.judge import judge
from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.metamorphic import compare
from attnfuzz.harness.judge.written import judge_written
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.memory.seal import Damage
from attnfuzz.harness.memory.slabs import OutOfMemory
from attnfuzz.harness.verdict.failures import REACHED_BY, Kind, Observation, Verdict
from attnfuzz.harness.verdict.printable import said_by, type_name, words_of
from attnfuzz.harness.verdict.tiers import ALL_TIERS, Task, Tier
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.kernels.backend import (
    Attended,
    Backend,
    Bench,
    Output,
    Result,
    Session,
    Unsupported,
    WrittenCache,
    WrittenThenAttended,
    unfinished,
)
from attnfuzz.kernels.engine import EngineError
from attnfuzz.kernels.library_cache import BuildFailed
from attnfuzz.kernels.transfers import Pending
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case, Pace
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.related import related
from attnfuzz.reference.user_error import UserError

REJECTIONS = (ValueError, TypeError, NotImplementedError)
"""Exceptions by which a kernel rejects arguments."""

_NOT_THE_BACKENDS = (LaunchError, OutOfMemory, EngineError)
"""Exceptions that are not failures of the backend: faults of the harness, and releases of an engine that differ from
the expected ones.
"""

_Made = TypeVar("_Made")
# No tensor of the judge has a gradient: without their bookkeeping, its small operations take a tenth less time.
_judge, _compare = torch.inference_mode()(judge), torch.inference_mode()(compare)


def warm() -> None:
    """Load, before workers are forked, everything that all need and that starts no thread."""
    torch.set_num_threads(1)
    # Looking through installed packages takes 50 ms: not in each worker's first case.
    engines()
    torch.nn.functional.softmax(torch.zeros(2, 2, dtype=torch.float64) @ torch.ones(2, 2, dtype=torch.float64), dim=-1)
    for backend in registry.builtin().values():
        # GPU backends can't be loaded before the fork.
        if backend.capability.device is Device.CPU and backend.missing() is None:
            # A case of this backend reports it; other backends' cases must still run.
            with contextlib.suppress(BuildFailed):
                backend.prepare(lambda _: None)


def handle(
    request: bytes, journal: Journal, explained: Callable[[Task, Callable[[bytes], None]], Verdict] | None = None
) -> bytes:
    """Answer an encoded Task with an encoded Verdict, by `explained` if the task asks for it."""
    task = msgspec.json.decode(request, type=Task)
    try:
        backend = backend_of(task.backend)
    except UserError:
        raise
    except BaseException as error:  # noqa: BLE001 - code of the backend, as in a step
        return msgspec.json.encode(Verdict(observations=(_raised(error),)))
    if task.explain and explained is not None:
        return msgspec.json.encode(explained(task, journal.write))
    with contextlib.nullcontext() if task.trace is None else Path(task.trace).open("w") as file:
        return msgspec.json.encode(Execution(task, journal.write, file, backend=backend).run())


@cache
def backend_of(name: str) -> Backend:
    """Load a backend and prepare it in this process."""
    backend = registry.load(name)
    backend.prepare(lambda _: None)
    return backend


Look = Callable[[int, Judgement, Sequence[Launched]], None]


class _Stepped(NamedTuple):
    """A step's output, on the device and as judged."""

    output: Result
    on_host: Pending[Result]


@dataclass(frozen=True)
class _Again:
    """A session of one further run of a step's attention."""

    attend: Callable[[], Output]

    def forward(self, index: int) -> Output:
        """Attend again."""
        del index
        return self.attend()


class Execution:
    """One run of one case, on guarded memory unless `memory` is given. `write` puts an entry into the journal.

    The task's backend runs it, or a `backend` without a registered name. `place` is the device it runs on. `look` gets
    each step's index, judgement and launches while their memory is still there.
    """

    def __init__(
        self,
        task: Task,
        write: Callable[[bytes], None],
        trace: TextIO | None = None,
        memory: PlacedMemory | None = None,
        backend: Backend | None = None,
        look: Look | None = None,
    ) -> None:
        case = task.case
        self._look = look
        self._case, self._strict, self._write = case, task.strict, write
        self._pid, self._settings = os.getpid(), Settings()
        self._alpha, self._tiers = task.alpha, ALL_TIERS.difference(task.without)
        self._backend = backend or backend_of(task.backend)
        self._place = place_of(self._backend.capability.device)
        self._unsupported: tuple[type[Exception], ...] = (Unsupported, *self._place.too_large)
        self._passed_on: tuple[type[Exception], ...] = (*_NOT_THE_BACKENDS, *self._unsupported)
        self._memory = self._place.memory(case.guard, case.outputs) if memory is None else memory
        self._tracer = None if trace is None else FileTracer(trace, self._memory, case.outputs)
        self._launcher = self._place.launcher(self._memory, write, self._tracer)
        self._launcher.launched = None if look is None else []
        self._contract: Contract
        self._noise: NoiseModel
        # Each step's baseline for a related run.
        self._kept: dict[int, Evidence] = {}
        self._observations: list[Observation] = []
        self._margins: dict[str, float] = {}
        self._seconds = {"place": 0.0, "kernel": 0.0, "reference": 0.0, "judge": 0.0}
        self._rows = self._unanswered = 0

    def run(self) -> Verdict:
        """Run the steps up to the first that fails, then those of the related case."""
        unsupported = None
        start = time.perf_counter()
        try:
            self._run_steps(self._case, self._judge)
            if self._has_related() and not self._failed():
                self._run_related()
        except self._unsupported as reason:
            # Out-of-memory errors have pages of text.
            unsupported = said_by(reason).partition("\n")[0] + self._launcher.run
        finally:
            try:
                # A fault may show late, in the harness's own work on the device: this process then ends here.
                self._launcher.see_through()
            finally:
                self._memory.release()
        # The rest is drawing values, planning and placing tensors.
        self._seconds["place"] = time.perf_counter() - start - sum(self._seconds.values())
        return Verdict(
            observations=tuple(self._observations),
            margins=self._margins,
            seconds=self._seconds,
            rows=self._rows,
            unanswered=self._unanswered,
            unsupported=unsupported,
        )

    def _has_related(self) -> bool:
        return isinstance(self._case, Case) and self._case.relation is not None and Tier.T6 in self._tiers

    def _failed(self) -> bool:
        return any(not observation.gap for observation in self._observations)

    def _run_steps(self, case: Case | CallCase, judge_step: Callable[[Output, Geometry, int, str], None]) -> None:
        """Run a case and judge each step's output by `judge_step`, up to the first that fails."""
        session = self._open(case)
        modes = [step.mode.value for step in case.steps] if isinstance(case, Case) else [case.mode]
        for index, mode in enumerate(modes):
            going = True
            while going:
                if self._failed():
                    return
                assert session is not None
                self._run_forward(case, session, index, mode, judge_step)
                going = unfinished(session, index)

    def _run_forward(
        self,
        case: Case | CallCase,
        session: Session,
        index: int,
        mode: str,
        judge_step: Callable[[Output, Geometry, int, str], None],
    ) -> None:
        """Run one forward of a step and judge its output."""
        before = len(self._observations)
        stepped = self._step(session, index, mode)
        # Attending again, on the contents that are due, is reached in the same way.
        way_to = self._launcher.ways()
        if stepped is not None:
            # A death from now on must not be blamed on the last kernel.
            self._write(b"")
            self._judge_stepped(case, stepped, index, mode, judge_step)
        found = with_broken(self._observations[before:], self._launcher.broken)
        self._observations[before:] = (_with_way(each, way_to(each.kernel)) for each in found)

    def _judge_stepped(
        self,
        case: Case | CallCase,
        stepped: _Stepped,
        index: int,
        mode: str,
        judge_step: Callable[[Output, Geometry, int, str], None],
    ) -> None:
        output = stepped.output
        if isinstance(output, WrittenCache):
            if self._tracer is not None:
                self._tracer.written(output)
            self._judge_written(output, index, mode)
            return
        if isinstance(output, WrittenThenAttended):
            again = self._attended(output, index, mode)
            if again is None:
                return
            stepped = again
        geometry = case.geometry if isinstance(case, Case) else answered_geometry(case)
        if self._tracer is not None:
            assert isinstance(stepped.output, Output)
            self._tracer.output(stepped.output, geometry)
        output = stepped.on_host.result()
        assert isinstance(output, Output)
        judge_step(output, geometry, index, mode)

    def _judge_written(self, written: WrittenCache, index: int, mode: str) -> bool:
        """Judge the contents of a KV cache; whether they are right."""
        report = partial(Observation, step=index, mode=mode, kernel=written.kernel or self._launcher.answering)
        judgement = judge_written(written, report)
        if Tier.T0 in self._tiers:
            self._add(judgement)
        return not judgement.observations

    def _attended(self, result: WrittenThenAttended, index: int, mode: str) -> _Stepped | None:
        """The attention of a step, on the contents that are due; None if it failed. A trace has the first failure."""
        if self._judge_written(result.written, index, mode):
            return _Stepped(result.output, on_host(result.output))
        if self._tracer is not None:
            self._tracer.written(result.written)
            return None
        again = self._step(_Again(result.attend_again), index, mode)
        self._write(b"")
        return again

    def _run_related(self) -> None:
        """Run the related case and compare. Messages of its failures name the related run."""
        case = self._case
        assert isinstance(case, Case)
        assert case.relation is not None
        relation, other, before = case.relation, related(case), len(self._observations)
        firsts = {index: first for first, index in enumerate(other.steps) if index is not None}

        def judge_step(output: Output, geometry: Geometry, index: int, mode: str) -> None:
            start, first = time.perf_counter(), firsts[index]
            comparison = _compare(
                self._kept[first],
                output,
                relation=relation,
                positions=other.positions[first],
                geometry=geometry,
                contract=self._contract,
                report=partial(Observation, step=first, mode=mode, kernel=self._launcher.answering),
                strict=self._strict,
                tiers=self._tiers,
            )
            self._observations += comparison.observations
            if comparison.margin is not None:
                self._margins[Tier.T6] = max(comparison.margin, self._margins.get(Tier.T6, 0.0))
            self._seconds["judge"] += time.perf_counter() - start

        self._launcher.run = f", in the related run ({relation.words})"
        self._run_steps(other.case, judge_step)
        self._observations[before:] = [
            replace(found, message=f"{found.message}{self._launcher.run}") for found in self._observations[before:]
        ]

    def _open(self, case: Case | CallCase) -> Session | None:
        bench = Bench(self._memory, self._launcher, self._place.device)

        def opened() -> Session:
            self._contract = _checked(self._backend.contract, Contract, "contract")
            if isinstance(case, CallCase):
                if case.answer is not None:
                    self._ask_noise(answered_geometry(case))
                return CallSession(case, self._backend, bench)
            self._ask_noise(case.geometry)
            return self._backend.open(case, bench)

        return self._attempt(opened, -1, "")

    def _ask_noise(self, geometry: Geometry) -> None:
        self._noise = _checked(self._backend.noise(geometry.dtype), NoiseModel, "noise")

    def _step(self, session: Session, index: int, mode: str) -> _Stepped | None:
        self._launcher.begin_step(index, mode)
        damage: list[Pending[list[Damage]]] = []
        late = isinstance(self._case, Case) and self._case.pace is Pace.LATE

        def forward() -> _Stepped | None:
            with self._place.late() if late else contextlib.nullcontext() as self._launcher.gate:
                try:
                    output = session.forward(index)
                    return None if output is None else _Stepped(_complete(output), on_host(output))
                finally:
                    damage.append(self._memory.damage())

        # Its one wait covers the output and the damage as well.
        stepped = self._attempt(forward, index, mode)
        self._seconds["kernel"] += self._launcher.kernel_seconds
        self._launcher.kernel_seconds = 0.0
        self._observations += self._launcher.observations
        report = self._launcher.observation()
        self._observations += [
            report(kind=Kind.CANARY_OVERWRITTEN, place=each.name, message=str(each))
            for found in damage
            for each in found.result()
        ]
        return stepped

    def _attempt(self, work: Callable[[], _Made], index: int, mode: str) -> _Made | None:
        """Return the result of `work`; None if it raises, which is observed."""
        try:
            made = work()
            self._launcher.see_through()
        except self._passed_on:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever else a backend raises is a finding, also SystemExit
            self._stay_alone()
            # If the device is broken, this process ends here.
            self._launcher.see_through()
            rejected = error is self._launcher.raised and isinstance(error, REJECTIONS)
            self._observations.append(_raised(error, index, mode, self._launcher.kernel, rejected=rejected))
            return None
        finally:
            self._stay_alone()
            self._settings.put_back()
        return made

    def _stay_alone(self) -> None:
        if os.getpid() != self._pid:
            # The backend forked and returned in both processes: the parent goes on with the case.
            os._exit(0)

    def _judge(self, output: Output, geometry: Geometry, index: int, mode: str) -> None:
        judgement = _judge(
            output,
            geometry=geometry,
            contract=self._contract,
            noise=self._noise,
            alpha=self._alpha,
            strict=self._strict,
            tiers=self._tiers,
            step=index,
            mode=mode,
            kernel=self._launcher.answering,
            keep=self._has_related(),
        )
        if self._look is not None:
            self._look(index, judgement, self._launcher.launched or [])
        if judgement.kept is not None:
            self._kept[index] = judgement.kept
        self._add(judgement)
        if judgement.unanswered and isinstance(self._case, Case):
            # All values that are drawn are finite.
            message = (
                f"{judgement.unanswered} (token, head) rows attend with or to values that are not finite, and no "
                "request holds such values: the backend handed its kernel something else"
            )
            report = self._launcher.observation()
            self._observations.append(report(kind=Kind.NOT_FINITE, place="inputs", message=message))

    def _add(self, judgement: Judgement) -> None:
        self._observations += judgement.observations
        for tier, margin in judgement.margins.items():
            self._margins[tier] = max(margin, self._margins.get(tier, 0.0))
        self._rows += judgement.rows
        self._unanswered += judgement.unanswered
        self._seconds["reference"] += judgement.reference_seconds
        self._seconds["judge"] += judgement.judge_seconds


def _with_way(found: Observation, way: str) -> Observation:
    return replace(found, message=f"{found.message}\n{REACHED_BY}{way}") if way else found


def _raised(
    error: BaseException, index: int = -1, mode: str = "", kernel: str = "", *, rejected: bool = False
) -> Observation:
    """Observe an exception: a kernel's rejection of supported arguments, or any other error."""
    return Observation(
        kind=Kind.UNEXPECTED_REJECTION if rejected else Kind.RAISED,
        place=type_name(error),
        message=words_of(error),
        step=index,
        mode=mode,
        kernel=kernel,
    )


def _checked(given: object, wanted: type[_Made], part: str) -> _Made:
    """Return a backend's value if it has the right type. Raises TypeError."""
    if not isinstance(given, wanted):
        raise TypeError(f"the backend's {part} is a {type(given).__name__}, not a {wanted.__name__}")
    return given


def _complete(output: object) -> Result:
    """Return a session's output if it has all judged parts. Raises TypeError."""
    if isinstance(output, WrittenCache):
        return output
    if isinstance(output, WrittenThenAttended):
        _complete(output.output)
        return output
    given = _checked(output, Output, "output")
    _checked(given.out, torch.Tensor, "out")
    for optional, part in ((given.lse, "lse"), (given.sinks, "sinks")):
        if optional is not None:
            _checked(optional, torch.Tensor, part)
    for entry in _checked(given.attended, tuple, "attended"):
        attended = _checked(entry, Attended, "entry of attended")
        for part in ("query", "key", "value"):
            _checked(getattr(attended, part), torch.Tensor, part)
    return given


def with_broken(found: Sequence[Observation], broken: Sequence[Observation]) -> list[Observation]:
    """The failures of a step, each with its first broken contract in the text; then the broken contracts.

    The consequences are worse than the breaches, and come first. A breach shared by several calls of the step is
    reported once.
    """
    if not broken:
        return list(found)
    first = broken[0]
    explained = [replace(each, message=f"{each.message}\nbefore that, {first.message}") for each in found]
    once: dict[tuple[str, str], Observation] = {}
    for each in broken:
        once.setdefault((each.kernel, each.place), each)
    return [*explained, *once.values()]


def _default_device(_: int) -> None:
    # Only set_default_device leaves a mode behind.
    torch.set_default_device(None)


def _collect_garbage(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch._C._len_torch_function_stack, _default_device),  # noqa: SLF001 - get_default_device takes 8 microseconds
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, _collect_garbage),
)
"""Getter, which takes much less than a microsecond, and setter of each setting."""


class Settings:
    """A snapshot of process-wide settings."""

    def __init__(self) -> None:
        self._values = [read() for read, _ in _SETTINGS]

    def put_back(self) -> None:
        """Restore the changed ones."""
        for (read, put), value in zip(_SETTINGS, self._values, strict=True):
            if read() != value:
                put(value)
