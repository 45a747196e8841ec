"""The loop over the forwards of a case: each runs a backend's code, and passes its output to a judge.

All exceptions, wrong return values and stray writes of that code become observations.
"""

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from importlib.util import find_spec
from typing import Any, NamedTuple, Self, TypeVar

import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.trace import FileTracer
from attnfuzz.harness.family import Family, family_judging
from attnfuzz.harness.inside.launcher import JournalingLauncher, LaunchError
from attnfuzz.harness.inside.places import Place, on_host
from attnfuzz.harness.inside.raised_at import raised_at, traceback_of
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.parts import checked
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.memory.seal import Damage
from attnfuzz.harness.memory.slabs import OutOfMemory
from attnfuzz.harness.verdict.failures import REACHED_BY, Kind, Observation, Verdict
from attnfuzz.harness.verdict.past import are_past, past_failure
from attnfuzz.harness.verdict.printable import label, said_by, type_name, words_of
from attnfuzz.harness.verdict.tiers import ALL_TIERS, Tier
from attnfuzz.kernels.interface.backend import (
    Output,
    Result,
    Session,
    Unsupported,
    WrittenCache,
    WrittenThenAttended,
    unfinished,
)
from attnfuzz.kernels.interface.engine import EngineError
from attnfuzz.kernels.interface.transfers import Pending
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.past import PastFailure

REJECTIONS = (ValueError, TypeError, NotImplementedError)
"""Exceptions by which a kernel rejects arguments."""

_NOT_THE_BACKENDS = (LaunchError, OutOfMemory, EngineError)
"""Exceptions that are not failures of the backend: faults of the harness, and releases of an engine that differ from
the expected ones.
"""

_Made = TypeVar("_Made")

JudgeStep = Callable[[Any, JudgingTerms], None]
"""Judges the result of a forward, on the host."""


@dataclass
class Account:
    """The parts of a case's verdict, as far as it has run."""

    observations: list[Observation] = field(default_factory=list)
    passed: list[Observation] = field(default_factory=list)
    margins: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"place": 0.0, "kernel": 0.0, "reference": 0.0, "judge": 0.0}
    )
    rows: int = 0
    unanswered: int = 0
    unsupported: str | None = None

    @property
    def failed(self) -> bool:
        """Whether an observation is a failure."""
        return any(not observation.gap for observation in self.observations)

    def add(self, judgement: Judgement) -> None:
        """Add the judgement on one output."""
        self.observations += judgement.observations
        for tier, margin in judgement.margins.items():
            self.see_margin(tier, margin)
        self.rows += judgement.rows
        self.unanswered += judgement.unanswered
        self.seconds["reference"] += judgement.reference_seconds
        self.seconds["judge"] += judgement.judge_seconds

    def pass_over(self, past: Collection[PastFailure], before: int, margins: Mapping[str, float]) -> None:
        """Ignore the observations from index `before` on, if all failures among them are `past`.

        The margins are reset to those before that forward, because they belong to its failures.
        """
        found = self.observations[before:]
        if not are_past(found, past):
            return
        for each in found:
            if not each.gap and past_failure(each) not in map(past_failure, self.passed):
                self.passed.append(each)
        self.observations[before:] = [each for each in found if each.gap]
        self.margins = dict(margins)

    def see_margin(self, tier: str, margin: float) -> None:
        """Keep the largest margin of a tier."""
        self.margins[tier] = max(margin, self.margins.get(tier, 0.0))

    def verdict(self) -> Verdict:
        """Return the verdict on the case."""
        return Verdict(
            observations=tuple(self.observations),
            passed=tuple(self.passed),
            margins=self.margins,
            seconds=self.seconds,
            rows=self.rows,
            unanswered=self.unanswered,
            unsupported=self.unsupported,
        )


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


class Forwards:
    """Runs sessions in one memory, by one launcher, and adds everything that goes wrong to `account`.

    `write` puts an entry into the journal; `tracer` gets each result. `terms` returns the terms for a step's index and
    mode.
    """

    def __init__(
        self,
        place: Place,
        memory: PlacedMemory,
        launcher: JournalingLauncher,
        account: Account,
        write: Callable[[bytes], None],
        tracer: FileTracer | None,
        terms: Callable[[int, str], JudgingTerms],
    ) -> None:
        self._place, self._memory, self._launcher = place, memory, launcher
        self._account, self._write, self._tracer, self._terms = account, write, tracer, terms
        self._pid = os.getpid()
        self._unsupported: tuple[type[Exception], ...] = (Unsupported, *place.too_large)
        self._passed_on: tuple[type[Exception], ...] = (*_NOT_THE_BACKENDS, *self._unsupported)

    def __enter__(self) -> Self:
        self._settings = Settings()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        """Wait for all launches, and release the memory. A case that is not supported ends here."""
        try:
            # A fault may be noticed late, in the harness's own work on the device: this process then exits here.
            self._launcher.see_through()
        finally:
            self._memory.release()
        if not isinstance(error, self._unsupported):
            return False
        # Out-of-memory errors have pages of text.
        self._account.unsupported = said_by(error).partition("\n")[0] + self._launcher.run
        return True

    def run(self, case: AnyCase, opened: Callable[[], Session], judge_step: JudgeStep) -> None:
        """Run a case in the session that `opened` creates, and judge each output, up to the first step that fails.

        Failures in the case's past do not end the case.
        """
        session = self._attempt(opened, -1, "")
        for index, mode in enumerate(case.modes):
            going = True
            while going:
                if self._account.failed:
                    return
                assert session is not None
                self._run_forward(case, session, index, mode, judge_step)
                going = unfinished(session, index)

    def _run_forward(self, case: AnyCase, session: Session, index: int, mode: str, judge_step: JudgeStep) -> None:
        """Run one forward of a step and judge its output."""
        before, margins = len(self._account.observations), dict(self._account.margins)
        stepped = self._step(case, session, index, mode)
        # Attending again, on the correct contents, is reached in the same way.
        way_to = self._launcher.ways()
        if stepped is not None:
            # A death from now on must not be blamed on the last kernel.
            self._write(b"")
            self._judge_stepped(case, stepped, index, mode, judge_step)
        found = with_broken(self._account.observations[before:], self._launcher.broken)
        self._account.observations[before:] = (_with_way(each, way_to(each.kernel)) for each in found)
        if stepped is not None and not _persists(stepped.output, case):
            self._account.pass_over(case.past, before, margins)

    def _judge_stepped(self, case: AnyCase, stepped: _Stepped, index: int, mode: str, judge_step: JudgeStep) -> None:
        if isinstance(stepped.output, WrittenThenAttended):
            again = self._attended(case, stepped.output, index, mode)
            if again is None:
                return
            stepped = again
        if self._tracer is not None:
            judging(stepped.output, case).record(case, stepped.output, self._tracer)
        judge_step(stepped.on_host.result(), self._terms(index, mode))

    def _is_right(self, case: AnyCase, written: WrittenCache, index: int, mode: str) -> bool:
        """Judge the first part of a result, by all tiers. Returns whether it is right."""
        terms = self._terms(index, mode)
        judgement = judging(written, case).judge(case, written, replaced(terms, tiers=ALL_TIERS))
        if Tier.T0 in terms.tiers:
            self._account.add(judgement)
        return not judgement.observations

    def _attended(self, case: AnyCase, result: WrittenThenAttended, index: int, mode: str) -> _Stepped | None:
        """Return the attention of a step on the correct contents, or None if it failed. A trace gets the failure."""
        before = len(self._account.observations)
        if self._is_right(case, result.written, index, mode):
            return _Stepped(result.output, on_host(result.output))
        if self._tracer is not None and not are_past(self._account.observations[before:], case.past):
            judging(result.written, case).record(case, result.written, self._tracer)
            return None
        again = self._step(case, _Again(result.attend_again), index, mode)
        self._write(b"")
        return again

    def _step(self, case: AnyCase, session: Session, index: int, mode: str) -> _Stepped | None:
        self._launcher.begin_step(index, mode)
        damage: list[Pending[list[Damage]]] = []

        def forward() -> _Stepped | None:
            with self._place.late() if case.late else contextlib.nullcontext() as self._launcher.gate:
                try:
                    output = session.forward(index)
                    return None if output is None else _Stepped(_complete(output, case), on_host(output))
                finally:
                    damage.append(self._memory.damage())

        # Its single wait also covers the output and the damage.
        stepped = self._attempt(forward, index, mode)
        self._account.seconds["kernel"] += self._launcher.kernel_seconds
        self._launcher.kernel_seconds = 0.0
        self._account.observations += self._launcher.observations
        report = self._launcher.observation()
        self._account.observations += [
            report(kind=Kind.CANARY_OVERWRITTEN, place=each.name, message=str(each))
            for found in damage
            for each in found.result()
        ]
        return stepped

    def _attempt(self, work: Callable[[], _Made], index: int, mode: str) -> _Made | None:
        """Return the result of `work`, or None if it raises, which is observed."""
        try:
            made = work()
            self._launcher.see_through()
        except self._passed_on:
            raise
        except BaseException as error:
            # Any other exception of a backend is a finding, even SystemExit.
            self._stay_alone()
            if isinstance(error, ModuleNotFoundError) and (package := _absent_package(error)) is not None:
                raise Unsupported(f"it imports {package}, which is not installed") from error
            # If the device is broken, this process exits here.
            self._launcher.see_through()
            rejected = error is self._launcher.raised and isinstance(error, REJECTIONS)
            self._account.observations.append(raised(error, index, mode, self._launcher.kernel, rejected=rejected))
            return None
        finally:
            self._stay_alone()
            self._settings.put_back()
        return made

    def _stay_alone(self) -> None:
        if os.getpid() != self._pid:
            # The backend forked and returned in both processes: the parent goes on with the case.
            os._exit(0)


def _absent_package(error: ModuleNotFoundError) -> str | None:
    """Return the package that a failed import lacks, or None if it lacks a module of a package that is installed."""
    # A backend may raise this error with anything for a name, and add modules and finders of its own.
    package = error.name.partition(".")[0] if type(error.name) is str else ""
    if package and package not in sys.stdlib_module_names and package not in sys.modules:
        with contextlib.suppress(Exception):
            return None if find_spec(package) is not None else label(package)
    return None


def judging(result: object, case: AnyCase) -> Family[Any]:
    """Return the family that judges a result of a case."""
    family = family_judging(result, case)
    assert family is not None
    return family


def _persists(result: Result, case: AnyCase) -> bool:
    """Return whether later steps use a wrong result. Writes are corrected before their step attends."""
    return not isinstance(result, WrittenThenAttended) and judging(result, case).persists


def _with_way(found: Observation, way: str) -> Observation:
    return replace(found, message=f"{found.message}\n{REACHED_BY}{way}") if way else found


def raised(
    error: BaseException, index: int = -1, mode: str = "", kernel: str = "", *, rejected: bool = False
) -> Observation:
    """Return the observation of an exception: a kernel's rejection of supported arguments, or any other error.

    Its message has the traceback through the backend's own code.
    """
    traceback = traceback_of(error)
    return Observation(
        kind=Kind.UNEXPECTED_REJECTION if rejected else Kind.RAISED,
        place=type_name(error),
        message=f"{words_of(error)}\n{traceback}" if traceback else words_of(error),
        step=index,
        mode=mode,
        kernel=kernel,
        raised_at=raised_at(error),
    )


def _complete(output: Any, case: AnyCase) -> Any:
    """Return a session's output if it has all judged parts. Raises TypeError."""
    if isinstance(output, WrittenThenAttended):
        _complete(output.output, case)
        return output
    family = family_judging(output, case)
    if family is None:
        return checked(output, Output, "output")
    family.check(output)
    return output


def with_broken(found: Sequence[Observation], broken: Sequence[Observation]) -> list[Observation]:
    """Return the failures of a step, each with its first broken contract in the text, then the broken contracts.

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
