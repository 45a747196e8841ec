"""Starting and restarting a server by its command line, and ending its whole process group."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from attnfuzz.harness.serve import keeper
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
        self._line = -1
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
        self._launch()
        self._await(began, stopped)
        return time.monotonic() - began

    def _launch(self) -> None:
        if shutil.which(self._arguments[0]) is None:
            raise ServerError(f"--start: cannot run {self._arguments[0]}: no such program, or it is not executable")
        # The keeper ends the server if this process is killed: it finds the end of the pipe then.
        reading, self._line = os.pipe()
        keeping = [sys.executable, "-I", "-S", keeper.__file__, str(reading), f"{SECONDS_TO_END}"]
        try:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [*keeping, *self._arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(reading,),
                    # A group of its own: Ctrl-C is for the campaign, which then ends all of the server's processes.
                    start_new_session=True,
                )
        finally:
            os.close(reading)

    def _refuse_others(self) -> None:
        try:
            self._client.ask("GET", "/health", timeout=2)
        except NoAnswer:
            return
        raise ServerError(f"a server already answers at {self._client.address}: stop it, or omit --start")

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
                break
        self._release()
        self._cover_token()

    def _release(self) -> None:
        """Let the keeper go: another group may have the number from now on."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._line, b"\0")
        os.close(self._line)

    def _cover_token(self) -> None:
        """Cover the token in the output, line by line: servers print their arguments, an API key among them."""
        covered = self._log.with_suffix(".covered")
        if self._client.token is None:
            return
        with self._log.open(errors="replace") as lines, covered.open("w") as written:
            written.writelines(map(self._client.without_token, lines))
        covered.replace(self._log)

    def tail(self) -> str:
        """Return the last whole lines of its output."""
        try:
            with self._log.open("rb") as log:
                if (size := log.seek(0, os.SEEK_END)) > BYTES_OF_TAIL:
                    log.seek(size - BYTES_OF_TAIL)
                    log.readline()
                else:
                    log.seek(0)
                return self._client.without_token(log.read().decode(errors="replace"))
        except OSError:
            return ""


def answers(client: Client) -> bool:
    """Return whether the server says that it is ready."""
    with contextlib.suppress(NoAnswer):
        return client.ask("GET", "/health", timeout=30).ok
    return False


def _gone(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait until no process of the group runs; one that ended and was not waited for does not."""
    until = time.monotonic() + seconds
    while process.poll() is None or group_runs(process.pid):
        if time.monotonic() > until:
            return False
        time.sleep(SECONDS_BETWEEN_LOOKS / 5)
    return True


def group_runs(group: int) -> bool:
    """Return whether a process of the group runs."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # After the name: state, parent, group (proc_pid_stat(5)).
            state, _, of_group, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(of_group) == group and state not in {"Z", "X"}:
                return True
    return False
