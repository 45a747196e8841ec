"""The main loop of a worker: take a request, run the handler, reply, until the parent closes or the worker dies.

After each request it restores the process state that a kernel may have changed.
"""

import contextlib
import gc
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

from attnfuzz.harness.workers import channel, stacks
from attnfuzz.harness.workers.channel import ChannelClosed, MessageKind
from attnfuzz.harness.workers.gpu_gone import ASKING_GPU, GpuGone
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.reference.user_error import UserError

Handler = Callable[[bytes, Journal], bytes]
"""Turns a request into a reply. It writes the journal before any action that may kill the worker."""

Begin = Callable[[], object]
"""Actions for a worker alone, not for its nursery: create a CUDA context, start threads."""

FaultRecorder = Callable[[int], None]
"""Installs a handler that records a fatal fault at the given address."""

_DEADLY = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)

_IDLE_SECONDS = 5e-3
"""Shorter waits don't show whether a kernel's thread still computes."""

_GLANCE_SECONDS = 2e-3
"""Time to watch threads that a kernel started: those of a pool wait, others may never end."""

_MOST_OF_A_TRACEBACK = 1 << 16
"""Number of characters to keep, from the end."""


class Line:
    """A worker's end of the channel to its parent, with the token of the current request."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._token = channel.UNASKED
        self._pid = os.getpid()

    def receive(self) -> bytes:
        """Wait for a request. Raises ChannelClosed if the parent is gone."""
        _, self._token, request = channel.receive(self._end)
        return request

    def send(self, message: MessageKind, payload: bytes) -> None:
        """Send a message. Exits this process on failure, or if a kernel forked it."""
        if os.getpid() != self._pid:
            os._exit(0)
        try:
            channel.send(self._end, message, payload, token=self._token)
        except OSError:
            os._exit(channel.LOST)


_line: Line | None = None
_journal: Journal | None = None
"""The line and the journal of this process, if it is a worker."""


@contextlib.contextmanager
def asking_gpu() -> Iterator[None]:
    """Show the parent that this worker waits for the GPU's driver, which may never answer."""
    if _journal is not None:
        _journal.write(ASKING_GPU)
    yield
    if _journal is not None:
        _journal.clear()


def serve(
    handler: Handler,
    requests: socket.socket,
    journal: Journal,
    output: int,
    *,
    begin: Begin,
    recorder: FaultRecorder | None,
    stack_writer: stacks.Writer | None = None,
) -> None:
    """Call `begin`, then answer requests until the parent closes. `output` is the file for stdout and stderr."""
    global _line, _journal  # noqa: PLW0603 - a process is a worker once, and may exit from anywhere
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    line = _line = Line(requests)
    _journal = journal
    stacks.install(journal, stack_writer)
    try:
        begin()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent has to report why there is no worker
        line.send(*_reported(error))
        return
    # Garbage collection of imports would only take time.
    gc.freeze()
    state = ProcessState(output)
    threads = threading.active_count()
    _watch_faults(recorder, journal)
    line.send(MessageKind.READY, f"{os.getpid()} {int(recorder is not None)}".encode())
    while True:
        try:
            request, busy = _next(line)
        except ChannelClosed:
            return
        journal.clear()
        message, reply = _answer(handler, request, journal)
        state.flush()
        # Replace handlers installed by the kernel or by libraries that it loaded.
        _watch_faults(recorder, journal)
        busy = busy or (threading.active_count() > threads and _computing())
        if (not state.put_back() or busy) and message is MessageKind.REPLY:
            message = MessageKind.LAST_REPLY
        line.send(message, reply)


def leave(exit_code: int) -> NoReturn:
    """Exit this worker at once, in the middle of a request.

    The parent is informed first, because the driver takes a while to clean up after a process that used a GPU.
    """
    for stream in (sys.stdout, sys.stderr):
        # A kernel may have closed or replaced it.
        with contextlib.suppress(Exception):
            stream.flush()
    if _line is not None:
        _line.send(MessageKind.LEAVING, str(exit_code).encode())
    os._exit(exit_code)


def _watch_faults(recorder: FaultRecorder | None, journal: Journal) -> None:
    # Libraries install handlers that print backtraces for up to a second; the parent explains a death better.
    if recorder is not None:
        recorder(journal.fault_address)
        return
    for deadly in _DEADLY:
        signal.signal(deadly, signal.SIG_DFL)


def _next(line: Line) -> tuple[bytes, bool]:
    """Return the next request, and whether a kernel's thread computed in this process meanwhile."""
    began, used = time.monotonic(), time.process_time()
    request = line.receive()
    idle = time.monotonic() - began
    return request, idle > _IDLE_SECONDS and time.process_time() - used > idle / 2


def _computing() -> bool:
    """Return whether another thread computes in this process."""
    used = time.process_time()
    time.sleep(_GLANCE_SECONDS)
    return time.process_time() - used > _GLANCE_SECONDS / 2


def _answer(handler: Handler, request: bytes, journal: Journal) -> tuple[MessageKind, bytes]:
    try:
        return MessageKind.REPLY, handler(request, journal)
    except BaseException as error:  # noqa: BLE001 - whatever it is, even SystemExit, the parent has to report it
        return _reported(error)


def _reported(error: BaseException) -> tuple[MessageKind, bytes]:
    if isinstance(error, GpuGone):
        return MessageKind.GPU_GONE, error.reason.encode(errors="replace")
    if isinstance(error, UserError):
        return MessageKind.REFUSAL, str(error).encode(errors="replace")
    trace = "".join(traceback.format_exception(error))
    return MessageKind.ERROR, trace[-_MOST_OF_A_TRACEBACK:].encode(errors="backslashreplace")


_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGPIPE,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGVTALRM,
    signal.SIGPROF,
)
"""Signals that may be handled in Python. Fault handlers are installed again for each case."""

_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_LIMITS = (
    resource.RLIMIT_AS,
    resource.RLIMIT_DATA,
    resource.RLIMIT_STACK,
    resource.RLIMIT_CPU,
    resource.RLIMIT_FSIZE,
    resource.RLIMIT_NOFILE,
    resource.RLIMIT_NPROC,
)


class ProcessState:
    """The state of this process, whose stdout and stderr go to the descriptor `output`."""

    def __init__(self, output: int) -> None:
        self._output = output
        self._streams = sys.stdout, sys.stderr
        self._folder = os.open(".", os.O_PATH)
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._limits = {number: resource.getrlimit(number) for number in _LIMITS}

    def put_back(self) -> bool:
        """Restore the state. Returns False if that fails, and the process must be replaced."""
        try:
            self._put_back()
        except (OSError, ValueError):
            return False
        return not any(stream.closed for stream in self._streams)

    def flush(self) -> None:
        """Flush the output to the parent, if possible."""
        for stream in self._streams:
            # A kernel may have closed it or its descriptor.
            with contextlib.suppress(OSError, ValueError):
                stream.flush()

    def _put_back(self) -> None:
        for timer in _TIMERS:
            signal.setitimer(timer, 0)
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        sys.stdout, sys.stderr = self._streams
        for descriptor in (1, 2):
            os.dup2(self._output, descriptor)
        os.fchdir(self._folder)
        os.umask(self._umask)
        for limit, values in self._limits.items():
            if resource.getrlimit(limit) != values:
                resource.setrlimit(limit, values)
