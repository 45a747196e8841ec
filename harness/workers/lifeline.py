"""The parent's connection to the nursery."""

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence

import msgspec

from attnfuzz.harness.workers import forked, left_behind, tethered
from attnfuzz.harness.workers.forked import Nursery
from attnfuzz.harness.workers.nursery import (
    MESSAGE_BYTES,
    SECONDS_TO_DIE,
    Answer,
    Bury,
    Failed,
    Fork,
    Order,
    Reap,
    Reaped,
    Setup,
)
from attnfuzz.harness.workers.postmortem import signal_name
from attnfuzz.reference.user_error import UserError

_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)
_SECONDS_TO_END = 5.0
"""Time that a process has to exit after its sockets are closed, or after it was killed."""

_SECONDS_TO_ANSWER = SECONDS_TO_DIE + 5.0
"""Time limit for an answer to an order, which waits for the end of a worker."""


class NurseryError(RuntimeError):
    """No worker can start: an import failed, or the nursery is gone. The message says which, with a traceback."""


class CannotStart(NurseryError, UserError):
    """No worker can start, for a reason that a user can fix. The message is one line with the fix."""


class Lifeline:
    """A nursery and the socket to it. The nursery starts at once, and imports in the background.

    `proven` is set by the first ready worker: a nursery that exits before that would only do so again.
    """

    def __init__(self, setup: Setup) -> None:
        self.proven = False
        self._stuck = False
        # Threads wait for concurrent workers.
        self._lock = threading.Lock()
        self._process, self._control, self._log = forked.take() or _spawned()
        self._send(setup)

    @property
    def alive(self) -> bool:
        """Whether the nursery still runs, and has answered so far."""
        return not self._stuck and self._process.poll() is None

    def killed(self) -> bool:
        """Return whether it was killed from outside, so that another may survive. Call this when it doesn't answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_SECONDS_TO_END)
        return not self.alive and (self.proven or self._process.returncode == -signal.SIGKILL)

    def fork(self, channel: int, journal: int, output: int, arguments: Sequence[str] = ()) -> None:
        """Request a worker on these descriptors with `arguments`, without waiting. It reports on its channel."""
        with self._lock:
            self._send(Fork(arguments), channel, journal, output)

    def reap(self, pid: int) -> int | None:
        """Return the waitpid status of a worker that exited, or None if it does not exit or the nursery is gone."""
        try:
            with self._lock:
                self._send(Reap(pid))
                answer = self._receive(_SECONDS_TO_ANSWER)
        except TimeoutError:
            # A late answer would be taken for the next one.
            self._stuck = True
            return None
        except (NurseryError, OSError):
            return None
        if isinstance(answer, Reaped) and answer.status is None:
            left_behind.note(pid)
        return answer.status if isinstance(answer, Reaped) else None

    def bury(self, pid: int) -> None:
        """Ask the nursery to reap a worker that is about to exit, without waiting."""
        with self._lock, contextlib.suppress(NurseryError):
            self._send(Bury(pid))

    def failure(self, words: str = "") -> NurseryError:
        """Return the reason why no worker started: the nursery's answer, or its output and the worker's (`words`)."""
        answer: Answer | None = None
        try:
            answer, end = self._receive(0.0), ""
        except BlockingIOError:
            # It goes on: a worker failed.
            end = ""
        except (NurseryError, OSError):
            end = self._end()
        if isinstance(answer, Failed) and answer.advice:
            return CannotStart(answer.advice)
        if isinstance(answer, Failed):
            return NurseryError(f"workers can't start:\n{answer.trace}")
        words = "\n".join(filter(None, (ends_of(self._log), words)))
        return NurseryError(f"no worker came from the process that forks them{end}; last words:\n{words}")

    def _end(self) -> str:
        try:
            status = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return ""
        if status >= 0:
            return f", which left with exit code {status}"
        return f", which was killed by {signal_name(-status)}"

    def close(self) -> None:
        """Stop the nursery, even if it is still importing, and its workers with it. It is left behind if that fails."""
        # Other processes may have inherited this end of the socket.
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        if self.proven:
            # It kills processes that were forked by kernels.
            self._go_on()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_SECONDS_TO_END)
        self._process.kill()
        try:
            self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            left_behind.note(self._process.pid)
        os.close(self._log)

    def abandon(self) -> None:
        """Only close the descriptors, in a forked process that inherited this by accident."""
        self._control.close()
        os.close(self._log)
        if isinstance(self._process, subprocess.Popen):
            # Popen warns about a child that it can't wait for, and this one belongs to another process.
            self._process.returncode = 0

    def _go_on(self) -> None:
        # A kernel may have stopped it.
        self._process.send_signal(signal.SIGCONT)

    def _send(self, order: Order, *descriptors: int) -> None:
        self._go_on()
        self._control.settimeout(_SECONDS_TO_ANSWER)
        try:
            socket.send_fds(self._control, [msgspec.json.encode(order)], descriptors)
        except TimeoutError:
            self._stuck = True
            raise self.failure() from None
        except (BrokenPipeError, ConnectionResetError):
            raise self.failure() from None

    def _receive(self, seconds: float) -> Answer:
        self._control.settimeout(seconds)
        try:
            message = self._control.recv(MESSAGE_BYTES)
        except ConnectionResetError:
            # It exited with orders unread. The system reports that first, then its earlier message.
            message = self._control.recv(MESSAGE_BYTES)
        if not message:
            raise NurseryError("the nursery hung up")
        return _answers.decode(message)


def _spawned() -> Nursery:
    log = os.memfd_create("attnfuzz-nursery-output")
    control, remote = forked.sockets()
    with remote:
        process = subprocess.Popen(
            tethered.command("attnfuzz.harness.workers.nursery", str(remote.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(remote.fileno(),),
            env={**os.environ, **tethered.ENVIRONMENT},
            # In its own group, Ctrl-C on the terminal doesn't reach it while Python starts.
            process_group=0,
        )
    return Nursery(process, control, log)


def ends_of(descriptor: int, nbytes: int = 4096) -> str:
    """Return the beginning and the end of a file, by its descriptor, as text.

    A native library prints its reason first, and a long stack after it.
    """
    size = os.fstat(descriptor).st_size
    if size <= nbytes:
        return _text(descriptor, nbytes, 0)
    half = nbytes // 2
    return f"{_text(descriptor, half, 0)}\n...\n{_text(descriptor, half, size - half)}"


def _text(descriptor: int, nbytes: int, offset: int) -> str:
    return os.pread(descriptor, nbytes, offset).decode(errors="replace").strip()
