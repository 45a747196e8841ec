"""Nurseries that are forked before they are needed, so that they share their parent's import of torch.

That import is most of a nursery's start. Only a process without threads and without state can fork one: jobs of
campaigns and commands that run cases do so as their first action.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import traceback
from typing import NamedTuple, Protocol

import torch  # noqa: F401 - the import to share

from attnfuzz.harness.workers import nursery
from attnfuzz.harness.workers.tethered import ENVIRONMENT, die_with

_SECONDS_TO_END = 5.0
"""Time that a nursery without a parent's end has to exit."""


class Process(Protocol):
    """The part of subprocess.Popen that a Lifeline needs."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None before `poll` or `wait` found out."""
        ...

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        ...

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        ...

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        ...


class Child:
    """A forked child as a `Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """See `Process`."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """See `Process`."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired("nursery", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """See `Process`."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """See `Process`."""
        self.send_signal(signal.SIGKILL)


class Nursery(NamedTuple):
    """A nursery that waits for its Setup: its process, the socket to it, and the file of its output."""

    process: Process
    control: socket.socket
    log: int


_ahead: list[Nursery] = []
"""The nurseries of this process that nothing uses yet."""


def fork_ahead() -> None:
    """Fork a nursery for a later `take`, before this process opens files that it must not keep open.

    Does nothing in a process with threads, such as those of a profiler that starts with Python: a fork would lose them,
    and hang on their locks.
    """
    if threading.active_count() > 1:
        return
    parent, log = os.getpid(), os.memfd_create("attnfuzz-nursery-output")
    control, remote = sockets()
    pid = os.fork()
    if pid == 0:
        try:
            die_with(parent)
            control.close()
            _close_ahead()
            _detach(log)
            os.environ.update(ENVIRONMENT)
            nursery.run(remote)
        except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's code
            traceback.print_exc()
        os._exit(1)
    remote.close()
    _ahead.append(Nursery(Child(pid), control, log))


def take() -> Nursery | None:
    """Return a nursery that was forked ahead, each once, or None."""
    return _ahead.pop() if _ahead else None


def dismiss() -> None:
    """End the nurseries that nothing took."""
    unused = [each.process for each in _ahead]
    _close_ahead()
    for process in unused:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)


def sockets() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a nursery's socket. It keeps messages apart, and passes descriptors with them."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _close_ahead() -> None:
    """Close the parent's ends of the nurseries that nothing took."""
    for sibling in _ahead:
        sibling.control.close()
        os.close(sibling.log)
    _ahead.clear()


def _detach(log: int) -> None:
    """Leave the group, input and output of the parent. Its session has all processes of a job, and no terminal."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    # Other files stay open: NVIDIA's management library, which asks about GPUs while torch is imported, keeps some.
