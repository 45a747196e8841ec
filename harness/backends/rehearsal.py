"""Rehearsals: loading and querying users' backends in a worker, which returns their descriptions.

Importing a user's file may raise anything, end the process, hang, print without end, start threads, or install handlers
that change this process's exit code. A worker takes the damage; a process that decides an exit code never imports such
a file.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.backends.description import MOST_BYTES, Description, Rehearsed, decoded, describe
from attnfuzz.harness.backends.load import BackendFileError, BackendSource, brief, load
from attnfuzz.harness.backends.unowned_pages import small_case, touches_unowned_pages
from attnfuzz.harness.family import families
from attnfuzz.harness.verdict.printable import printable, shortened
from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.harness.workers.supervisor import HandlerError, Workers
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.interface.toolchain import toolchains
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device

IMPORT_SECONDS = 30.0
"""Half of the time limit for a backend's import and description: a worker writes to its journal when it begins, and
hangs if it is silent for as long again.
"""

PREPARE_SECONDS = 900.0
"""Half of the time limit for a backend's `prepare`, which may compile."""

_SILENT_SECONDS = 5.0
"""Time after which a line names the pending step."""

_LAST_LINES = 10
_MOST_CHARACTERS = 1000

_TRIAL_SECONDS = 10.0

# By its name: it imports the code that runs cases, which only workers have.
_HANDLER = "attnfuzz.harness.entry:handle_rehearsal"

RunCase = Callable[[Case, Backend], None]


class Rehearsal(msgspec.Struct, frozen=True):
    """A request to a worker, in a `folder`: describe the backend of `source`, `prepare` it, or `run` a case."""

    source: BackendSource
    folder: str
    prepare: bool = False
    run: Case | None = None


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The backend's `prepare` returned, or the case has been run."""


class PrepareLine(msgspec.Struct, frozen=True, tag=True):
    """A line of progress of the backend's preparation. An empty request asks for the next step."""

    text: str


class Wrong(msgspec.Struct, frozen=True, tag=True):
    """The backend's error."""

    message: str


Answer = Description | Prepared | PrepareLine | Wrong


def rehearse(source: BackendSource) -> Rehearsed:
    """Load a backend in a worker, and return a stand-in with its answers. Raises BackendFileError."""
    with stage() as workers:
        answer = _answer(workers, Rehearsal(source, str(Path.cwd())), IMPORT_SECONDS, "import")
        if not isinstance(answer, Description):
            raise BackendFileError(f"{source.name} did not describe itself: make it an attnfuzz.Backend")
        return Rehearsed(source, _with_pool_holes(workers, source, answer), prepare)


def _with_pool_holes(workers: Workers, source: BackendSource, described: Description) -> Description:
    """Return the description of a function with the result of a trial of unowned pages, if it leaves that open."""
    if not described.is_function or described.prepares or described.missing:
        return described
    can = described.capability
    if can.pool_holes is not None:
        return described
    case = small_case(can)
    if case is None:
        return described

    def dies(case: Case) -> Death | None:
        request = msgspec.msgpack.encode(Rehearsal(source, str(Path.cwd()), run=case))
        try:
            reply = workers.run(request, timeout=_TRIAL_SECONDS)
        except HandlerError:
            return None
        return reply if isinstance(reply, Death) else None

    touches = touches_unowned_pages(case, dies)
    return replace(described, capability=replace(can, pool_holes=not touches), whole_pool=touches)


def prepare(source: BackendSource, progress: Callable[[str], None]) -> None:
    """Compile a backend's modules, and call its `prepare`, in a worker. Raises BackendFileError."""
    task = Rehearsal(source, str(Path.cwd()), prepare=True)
    with stage() as workers:
        answer = _answer(workers, task, PREPARE_SECONDS, "prepare()")
        while isinstance(answer, PrepareLine):
            progress(printable(shortened(answer.text, _MOST_CHARACTERS)))
            answer = _answer(workers, task, PREPARE_SECONDS, "prepare()", further=True)


def stage() -> Workers:
    """Return workers for one rehearsal: the next backend needs a clean process."""
    return Workers(_HANDLER, spares=0)


def handle(request: bytes, run: RunCase) -> bytes:
    """Load a backend in the worker, and describe it, prepare it, or `run` a case on it."""
    streams = sys.stdout, sys.stderr
    task = msgspec.msgpack.decode(request, type=Rehearsal) if request else None
    answer: Answer
    try:
        answer = _next_step() if task is None else _performed(task, run)
    except BackendFileError as error:
        answer = Wrong(str(error))
    except BaseException as error:  # noqa: BLE001 - it is the user's code, which may raise anywhere
        answer = Wrong(f"{'the backend' if task is None else task.source.name} fails: {brief(error)}")
    sys.stdout, sys.stderr = streams
    return msgspec.msgpack.encode(answer)


def _performed(task: Rehearsal, run: RunCase) -> Answer:
    os.chdir(task.folder)
    # A file may change the path from which they are imported.
    families()
    backend = load(task.source)
    if task.run is not None:
        run(task.run, backend)
        return Prepared()
    if not task.prepare:
        return describe(task.source.name, backend)
    global _steps  # noqa: PLW0603 - a worker prepares one backend
    _steps = _preparing(task.source.name, backend)
    return _next_step()


_steps: Iterator[str] = iter(())
"""The lines of this worker's preparation."""


def _next_step() -> PrepareLine | Prepared:
    line = next(_steps, None)
    return Prepared() if line is None else PrepareLine(line)


def _preparing(name: str, backend: Backend) -> Iterator[str]:
    try:
        if backend.capability.device is Device.CUDA:
            for toolchain in toolchains():
                yield from toolchain.compiling([backend])
        backend.prepare(lambda _: None)
    except GeneratorExit:
        raise
    except BaseException as error:
        raise BackendFileError(f"{name}: its prepare() raises {brief(error)}") from error


def _answer(workers: Workers, task: Rehearsal, seconds: float, stage_name: str, *, further: bool = False) -> Answer:
    """Return the answer to a task, or to a request for its next step, of which nothing is said."""
    name, started = task.source.name, time.monotonic()
    words = f"Waiting for {stage_name} of {name}, for up to {2 * seconds:g} s."
    with contextlib.nullcontext() if further else _said(words):
        try:
            reply = workers.run(b"" if further else msgspec.msgpack.encode(task), timeout=seconds)
        except HandlerError as error:
            raise BackendFileError(f"{name} leaves its process unable to answer: {brief(error)}") from error
    if isinstance(reply, Death):
        raise BackendFileError(_epitaph(name, stage_name, reply, time.monotonic() - started))
    if len(reply) > 2 * MOST_BYTES:
        raise BackendFileError(f"{name} answers with {len(reply):,} bytes")
    try:
        answer: Answer = msgspec.msgpack.decode(reply, type=Answer)
        answer = decoded(answer) if isinstance(answer, Description) else answer
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise BackendFileError(f"{name} gives an invalid answer: {brief(error)}") from error
    if isinstance(answer, Wrong):
        raise BackendFileError(answer.message)
    return answer


def _epitaph(name: str, stage_name: str, death: Death, seconds: float) -> str:
    """Describe the worker's end, the remedy, and the end of its output."""
    if death.hang:
        advice = "make it quicker" if stage_name != "import" else "move slow work into its prepare()"
        text = f"{name}: {stage_name} did not end within {seconds:.0f} s: {advice}"
    else:
        text = f"{name}: {stage_name} ended its process: {death.cause}. Raise an exception instead of ending it"
    lines = printable(death.output).splitlines()[-_LAST_LINES:]
    said = "\n".join(f"  {line}" for line in lines)[-_MOST_CHARACTERS:]
    return f"{text}. It printed last:\n{said}" if said else f"{text}."


@contextlib.contextmanager
def _said(words: str) -> Iterator[None]:
    """Print a line about a long wait to standard error, whose reader may be a job's main process."""
    line = f"{printable(shortened(words, _MOST_CHARACTERS))}\n"
    timer = threading.Timer(_SILENT_SECONDS, lambda: sys.stderr.write(line))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
