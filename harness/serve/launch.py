"""Starting and restarting a server by its command line, and ending its whole process group."""

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from attnfuzz.harness.serve.client import Client, NoAnswer, ServerError

SECONDS_TO_END = 20.0
"""Time between SIGTERM and SIGKILL: a server of several processes ends them in turn."""

SECONDS_BETWEEN_LOOKS = 0.25

BYTES_OF_TAIL = 8192
"""The end of a server's output that goes into a finding."""


class LaunchedServer:
    """A server that is started by `command`, without a shell, and answers at the address of `client`.

    Its output goes to `log`, in which each start begins anew. `ready` is the time that it may take.
    """

    def __init__(self, command: str, client: Client, log: Path, *, ready: float) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise ServerError(f"--start: {error}: give the command as a shell would read it") from None
        if not self._arguments:
            raise ServerError("--start is empty: give the command that starts the server")
        self.command = command
        self._client = client
        self._log = log
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None
        self.last_words = ""
        """The end of the output of the server before this one."""

    @property
    def pid(self) -> int | None:
        """The process, which leads its group; None if none was started."""
        return None if self._process is None else self._process.pid

    @property
    def exit_status(self) -> int | None:
        """How its first process ended; None while it runs."""
        return None if self._process is None else self._process.poll()

    def start(self, stopped: Callable[[], bool] = lambda: False) -> float:
        """Start it, end the one before, and wait until it answers; returns the seconds. Raises ServerError."""
        self.end()
        self.last_words = self.tail()
        self._refuse_others()
        began = time.monotonic()
        with self._log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    self._arguments,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # A group of its own: Ctrl-C is for the campaign, which then ends all of the server's processes.
                    start_new_session=True,
                )
            except OSError as error:
                raise ServerError(f"--start: cannot run {self._arguments[0]}: {error.strerror}") from None
        self._await(began, stopped)
        return time.monotonic() - began

    def _refuse_others(self) -> None:
        try:
            self._client.ask("GET", "/health", timeout=2)
        except NoAnswer:
            return
        raise ServerError(f"a server answers at {self._client.address} already: end it, or leave out --start")

    def _await(self, began: float, stopped: Callable[[], bool]) -> None:
        while not answers(self._client):
            if self.exit_status is not None:
                raise ServerError(f"--start: the server ended with {self.exit_status} before it was ready: {self._log}")
            if stopped():
                raise ServerError("interrupted while the server was starting")
            if time.monotonic() - began > self._ready:
                raise ServerError(
                    f"--start: not ready after {self._ready:g} s, see {self._log}; give it more with --ready"
                )
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def end(self) -> None:
        """End all processes of its group: politely, then by force."""
        process, self._process = self._process, None
        if process is None:
            return
        for signum, seconds in ((signal.SIGTERM, SECONDS_TO_END), (signal.SIGKILL, SECONDS_TO_END)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signum)
            if _gone(process, seconds):
                return

    def tail(self) -> str:
        """The end of its output."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - BYTES_OF_TAIL))
                return log.read().decode(errors="replace")
        except OSError:
            return ""


def answers(client: Client) -> bool:
    """Whether the server says that it is ready."""
    with contextlib.suppress(NoAnswer):
        return client.ask("GET", "/health", timeout=30).ok
    return False


def _gone(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait until no process of the group runs; one that ended and was not waited for does not."""
    until = time.monotonic() + seconds
    while process.poll() is None or _runs(process.pid):
        if time.monotonic() > until:
            return False
        time.sleep(SECONDS_BETWEEN_LOOKS / 5)
    return True


def _runs(group: int) -> bool:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # After the name: state, parent, group (proc_pid_stat(5)).
            state, _, of_group, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(of_group) == group and state not in {"Z", "X"}:
                return True
    return False
