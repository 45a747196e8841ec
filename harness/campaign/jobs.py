"""The job processes of a campaign, seen from the main process."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from types import TracebackType
from typing import IO, Protocol, Self

import msgspec

from attnfuzz.harness.campaign.messages import AnyMessage, Setup, Slice

SECONDS_TO_LEAVE = 3.0


class JobEnded(Exception):
    """A job process ended by itself; `text` is what it wrote to standard error."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"job {number} ended")
        self.number = number
        self.text = text


class Jobs(Protocol):
    """Something that runs slices, several at a time."""

    @property
    def count(self) -> int:
        """How many slices run at a time."""
        ...

    def start(self, job: int, task: Slice) -> None:
        """Have job number `job` run a slice."""
        ...

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        """The next message of any job, with the job's number; None if none came in `timeout` seconds.

        Raises JobEnded.
        """
        ...


class JobProcesses:
    """Jobs as processes, each in a session of its own: a Ctrl-C at the terminal reaches only the main process."""

    def __init__(self, count: int, setup: Setup) -> None:
        self.count = count
        self._setup = setup
        self._messages: queue.SimpleQueue[tuple[int, AnyMessage | None]] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._errors: list[IO[bytes]] = []

    def __enter__(self) -> Self:
        """Start the processes."""
        for number in range(self.count):
            errors = tempfile.TemporaryFile()
            process = subprocess.Popen(
                [sys.executable, "-m", "attnfuzz.harness.campaign.job"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            self._errors.append(errors)
            self._processes.append(process)
            self._send(number, self._setup)
            threading.Thread(target=self._listen, args=(number, process), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes and their workers; those that do not leave are killed."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        deadline = time.monotonic() + SECONDS_TO_LEAVE
        for process, errors in zip(self._processes, self._errors, strict=True):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            errors.close()

    def start(self, job: int, task: Slice) -> None:
        """Have job number `job` run a slice."""
        self._send(job, task)

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        """The next message of any job, with the job's number; None if none came in `timeout` seconds."""
        try:
            job, message = self._messages.get(timeout=timeout)
        except queue.Empty:
            return None
        if message is None:
            raise JobEnded(job, self._error_text(job))
        return job, message

    def _send(self, number: int, order: Setup | Slice) -> None:
        stdin = self._processes[number].stdin
        assert stdin is not None
        # A job that has ended is noticed where its messages are read.
        with contextlib.suppress(BrokenPipeError):
            stdin.write(msgspec.json.encode(order) + b"\n")
            stdin.flush()

    def _listen(self, number: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        decoder = msgspec.json.Decoder(AnyMessage)
        # A job that dies may leave half a message.
        with process.stdout, contextlib.suppress(msgspec.DecodeError):
            for line in process.stdout:
                self._messages.put((number, decoder.decode(line)))
        process.wait()
        self._messages.put((number, None))

    def _error_text(self, number: int) -> str:
        errors = self._errors[number]
        errors.seek(0)
        status = self._processes[number].returncode
        return errors.read().decode(errors="replace") + f"(job process {number} ended with status {status})"
