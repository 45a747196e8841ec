"""Rehearses users' backends: loads and asks them in a worker, and gives what they said of themselves.

Importing a user's file may raise anything, end the process, hang, print without end, start threads, or leave handlers
behind that change this process's exit code. A worker takes the damage, and a process that decides an exit code never
imports such a file.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from attnfuzz.harness.backends.description import MOST_BYTES, Description, Rehearsed, describe
from attnfuzz.harness.backends.load import BackendFileError, BackendSource, brief, load
from attnfuzz.harness.verdict.printable import printable, shortened
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.pool import HandlerError, Workers
from attnfuzz.harness.workers.postmortem import Death

IMPORT_SECONDS = 30.0
"""Half of what a backend's import, and its answers about itself, may take: a worker writes to its journal when it
begins, and hangs after as long without another word.
"""

PREPARE_SECONDS = 900.0
"""Half of what a backend's `prepare` may take. It may compile."""

_SILENT_SECONDS = 5.0
"""After which a line says what is waited for."""

_LAST_LINES = 10
_MOST_CHARACTERS = 1000

_HANDLER = "attnfuzz.harness.backends.rehearsal:handle"


class Rehearsal(msgspec.Struct, frozen=True):
    """What a worker is asked, in a `folder`: to describe the backend of `source`, or to `prepare` it."""

    source: BackendSource
    folder: str
    prepare: bool = False


class Prepared(msgspec.Struct, frozen=True, tag=True):
    """The backend's `prepare` returned."""


class Wrong(msgspec.Struct, frozen=True, tag=True):
    """What is wrong with the backend."""

    message: str


Answer = Description | Prepared | Wrong


def rehearse(source: BackendSource) -> Rehearsed:
    """Load a backend in a worker, and return a stand-in that answers as it did. Raises BackendFileError."""
    answer = _answer(Rehearsal(source, str(Path.cwd())), IMPORT_SECONDS, "import")
    if not isinstance(answer, Description):
        raise BackendFileError(f"{source.name} did not describe itself: make it a Backend of attnfuzz.kernels.backend")
    return Rehearsed(source, answer, prepare)


def prepare(source: BackendSource) -> None:
    """Call a backend's `prepare` in a worker. Raises BackendFileError."""
    _answer(Rehearsal(source, str(Path.cwd()), prepare=True), PREPARE_SECONDS, "prepare()")


def stage() -> Workers:
    """Workers for one rehearsal: the next backend must not meet what this one left behind."""
    return Workers(_HANDLER, spares=0)


def handle(request: bytes, journal: Journal) -> bytes:
    """In the worker: load a backend, and describe or prepare it."""
    del journal
    streams = sys.stdout, sys.stderr
    task = msgspec.msgpack.decode(request, type=Rehearsal)
    answer: Answer
    try:
        answer = _performed(task)
    except BackendFileError as error:
        answer = Wrong(str(error))
    except BaseException as error:  # noqa: BLE001 - it is the user's code, and may raise where nothing does
        answer = Wrong(f"{task.source.name} fails: {brief(error)}")
    sys.stdout, sys.stderr = streams
    return msgspec.msgpack.encode(answer)


def _performed(task: Rehearsal) -> Answer:
    os.chdir(task.folder)
    backend = load(task.source)
    if not task.prepare:
        return describe(task.source.name, backend)
    try:
        backend.prepare(lambda _: None)
    except BaseException as error:
        raise BackendFileError(f"{task.source.name}: its prepare() raises {brief(error)}") from error
    return Prepared()


def _answer(task: Rehearsal, seconds: float, what: str) -> Answer:
    name, started = task.source.name, time.monotonic()
    with stage() as workers, _said(f"Waiting for {what} of {name}, for up to {2 * seconds:g} s."):
        try:
            reply = workers.run(msgspec.msgpack.encode(task), timeout=seconds)
        except HandlerError as error:
            raise BackendFileError(f"{name} leaves its process unable to answer: {brief(error)}") from error
    if isinstance(reply, Death):
        raise BackendFileError(_epitaph(name, what, reply, time.monotonic() - started))
    if len(reply) > 2 * MOST_BYTES:
        raise BackendFileError(f"{name} answers with {len(reply):,} bytes")
    try:
        answer: Answer = msgspec.msgpack.decode(reply, type=Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise BackendFileError(f"{name} answers something else than what it was asked: {brief(error)}") from error
    if isinstance(answer, Wrong):
        raise BackendFileError(answer.message)
    return answer


def _epitaph(name: str, what: str, death: Death, seconds: float) -> str:
    """How the worker ended, what to do, and the end of what it printed."""
    if death.hang:
        advice = "make it quicker" if what != "import" else "move what takes long into its prepare()"
        text = f"{name}: {what} is not over after {seconds:.0f} s: {advice}"
    else:
        text = f"{name}: {what} ended its process: {death.cause}. Remove what ends it; raise an exception instead"
    lines = printable(death.output).splitlines()[-_LAST_LINES:]
    said = "\n".join(f"  {line}" for line in lines)[-_MOST_CHARACTERS:]
    return f"{text}. It printed last:\n{said}" if said else f"{text}."


@contextlib.contextmanager
def _said(words: str) -> Iterator[None]:
    """Say what is waited for if it takes long; on standard error, whose reader may be a job's main process."""
    line = f"{printable(shortened(words, _MOST_CHARACTERS))}\n"
    timer = threading.Timer(_SILENT_SECONDS, lambda: sys.stderr.write(line))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
