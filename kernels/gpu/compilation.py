"""Compiles FlashInfer's modules in parallel; runs as a separate process.

    python -m attnfuzz.kernels.gpu.compilation JOBS SECONDS < modules.pickle

Importing FlashInfer creates a CUDA context on a GPU machine, after which no process may fork workers. So this process
imports it, and sees no GPU either. Each module is compiled by a fork, in a session that can be killed as a whole.
Results are lines of JSON on standard output.

A module has between one and a hundred files (fmha_v2), so neither modules nor files are suitable units for JOBS: all
ninjas share JOBS slots through a GNU make job server, which ninja supports from version 1.13 on.
"""

import contextlib
import os
import pickle
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

import msgspec
import ninja

from attnfuzz.kernels.gpu.build_record import Built, Module, workspace_base
from attnfuzz.kernels.interface.backend import Unsupported

_POLL_SECONDS = 0.1
_REASON_CHARACTERS = 300
_FORK = get_context("fork")

# FlashInfer refuses a combination, or lacks it: not an error in the request.
_REFUSALS = (Unsupported, AttributeError, NotImplementedError, ValueError)


class BuildLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of output: the result of building the module `name`."""

    name: str
    built: Built


class Slots:
    """The slots shared by all compilers. A running process holds one; its ninja takes more while some are free."""

    def __init__(self, folder: Path, count: int) -> None:
        path = folder / "slots"
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        os.write(self._pipe, b"+" * count)
        self.flags = f" -j{count} --jobserver-auth=fifo:{path}"

    def take(self) -> bool:
        """Take a slot if one is free; returns whether it did."""
        try:
            return bool(os.read(self._pipe, 1))
        except BlockingIOError:
            return False

    def give_back(self) -> None:
        """Free a slot. Slots held by a killed ninja stay lost: the others go on with fewer."""
        os.write(self._pipe, b"+")


@dataclass(frozen=True)
class Compiler:
    """A process that compiles the module `name` into `folder`, with a pipe for its result."""

    name: str
    folder: Path | None
    process: ForkProcess
    answer: Connection
    started: float

    def stalled(self, limit: float) -> bool:
        """Return whether it is running, and has finished no file for `limit` seconds."""
        if time.time() - self.started <= limit or not self.process.is_alive():
            return False
        objects = self.folder.glob("*.o") if self.folder is not None else ()
        return time.time() - max(map(_stamp, objects), default=0.0) > limit

    def result(self) -> Built:
        """Return the result of a process that has ended."""
        self.process.join()
        if self.answer.poll():
            with contextlib.suppress(EOFError):
                return msgspec.json.decode(self.answer.recv_bytes(), type=Built)
        return _failed(f"the compiler was killed (exit code {self.process.exitcode})")

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        # A process that has just begun has no session of its own yet.
        self.process.kill()
        self.process.join()


def compiled(modules: Sequence[Module], slots: Slots, limit: float) -> Iterator[BuildLine]:
    """Yield each module's result when it is ready. A module that finishes no file for `limit` seconds is given up."""
    # The longest first, so that none is left for the end.
    waiting = sorted(map(_sized, modules), key=lambda sized: sized.files, reverse=True)
    running: list[Compiler] = []
    parent = os.getppid()
    try:
        while waiting or running:
            while waiting and slots.take():
                running.append(_start(waiting.pop(0)))
            connection.wait([each.process.sentinel for each in running], timeout=_POLL_SECONDS)
            for each in list(running):
                if each.stalled(limit):
                    each.kill()
                    built = _failed(f"no file of it was compiled for {limit:.0f} s")
                elif each.process.is_alive():
                    continue
                else:
                    built = each.result()
                running.remove(each)
                slots.give_back()
                yield BuildLine(name=each.name, built=built)
            if os.getppid() != parent:
                return
    finally:
        for each in running:
            each.kill()


class _Sized(NamedTuple):
    """A module with its number of files and its build folder, if they are known."""

    module: Module
    files: int
    folder: Path | None


def _sized(module: Module) -> _Sized:
    try:
        spec = module.spec()
        return _Sized(module, len(spec.sources), spec.get_library_path().parent)
    except Exception:  # noqa: BLE001 - reported when its turn comes
        return _Sized(module, 0, None)


def _start(sized: _Sized) -> Compiler:
    answer, say = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_compile, args=(sized.module, say))
    process.start()
    say.close()
    return Compiler(sized.module.name, sized.folder, process, answer, time.time())


def _compile(module: Module, say: Connection) -> None:
    os.setsid()
    start = time.monotonic()
    try:
        spec = module.spec()
    except Exception as error:  # noqa: BLE001 - any error concerns this module alone
        say.send_bytes(msgspec.json.encode(_failed(_words(error), lasting=isinstance(error, _REFUSALS))))
        return
    before = _stamp(spec.get_library_path())
    try:
        if not spec.is_aot:
            spec.build(verbose=False, need_lock=True)
    except Exception as error:  # noqa: BLE001 - same
        reason, lasting = first_error(str(error))
        say.send_bytes(msgspec.json.encode(_failed(reason, lasting=lasting)))
        return
    library = spec.get_library_path()
    seconds = 0.0 if _stamp(library) == before else time.monotonic() - start
    # Of the compilers that were waited for, and theirs.
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    core_seconds = spent.ru_utime + spent.ru_stime if seconds else 0.0
    built = Built(library=str(library), seconds=seconds, core_seconds=core_seconds, base=workspace_base())
    say.send_bytes(msgspec.json.encode(built))


def _stamp(path: Path) -> float:
    """Return the modification time of a file, 0 if there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _failed(reason: str, *, lasting: bool = False) -> Built:
    return Built(reason=reason[:_REASON_CHARACTERS], lasting=lasting, base=workspace_base())


def _words(error: Exception) -> str:
    text = str(error).strip()
    line = text.splitlines()[0] if text else ""
    return line if isinstance(error, Unsupported) else f"{type(error).__name__}: {line}"


def first_error(output: str) -> tuple[str, bool]:
    """Find the first error in the output of ninja and the compilers, and whether it is a static assertion."""
    for line in output.splitlines():
        match = re.match(r"(?P<file>[^\s:(]+)[:(](?P<line>\d+)\)?(?::\d+)?:? (?:fatal )?error:?\s+(?P<text>.*)", line)
        if match is not None:
            where = f"{Path(match['file']).name}:{match['line']}"
            return f"{where}: {match['text'].strip()}", "static assertion" in match["text"]
    lines = [line for line in output.splitlines() if re.search(r"error|not found|killed", line, re.IGNORECASE)]
    return (lines or output.strip().splitlines() or ["no output"])[0].strip(), False


def main() -> None:
    """Compile the modules pickled on standard input."""
    jobs, limit = int(sys.argv[1]), float(sys.argv[2])
    modules: Sequence[Module] = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our parent
    # An exit ends the compilers, as an interrupt does.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Compilers and FlashInfer's log write to any descriptor: only lines of ours go to the parent.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="attnfuzz-build-") as folder:
        slots = Slots(Path(folder), jobs)
        os.environ["MAKEFLAGS"] = slots.flags
        os.environ["PATH"] = f"{ninja.BIN_DIR}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        # FlashInfer would pass it on to each ninja, which would then ignore the slots.
        os.environ.pop("MAX_JOBS", None)
        for line in compiled(modules, slots, limit):
            print(msgspec.json.encode(line).decode(), file=output, flush=True)


if __name__ == "__main__":
    main()
