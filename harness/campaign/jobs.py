"""The job processes of a campaign, seen from the main process."""

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol, Self

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.search.messages import AnyMessage, JobSetup, Slice
from attnfuzz.harness.workers import left_behind, tethered
from attnfuzz.reference.case_types import decode_any

SECONDS_TO_LEAVE = 3.0
"""Time that jobs have to stop their workers and exit."""

SECONDS_TO_DIE = 2.0
"""Time limit for the end of killed processes. On a GPU the driver cleans up after them first."""

_SECONDS_PER_LOOK = 0.02


class JobEnded(Exception):
    """A job exited; `text` is its standard error, and how it ended.

    `killed`: from outside, by a signal or with its machine, so it can be restarted. `fixable`: for a reason outside of
    the harness, which `text` says in one line.
    """

    def __init__(self, number: int, text: str, *, killed: bool = False, fixable: bool = False) -> None:
        super().__init__(f"job {number} ended")
        self.number = number
        self.text = text
        self.killed = killed
        self.fixable = fixable


class Jobs(Protocol):
    """Runs slices, several at a time."""

    @property
    def count(self) -> int:
        """The number of slices that run at a time."""
        ...

    def start(self, job: int, task: Slice) -> None:
        """Run a slice as job number `job`."""
        ...

    def answer(self, job: int, *, granted: bool) -> None:
        """Answer the last claim of job number `job`."""
        ...

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        """Return the next message of any job, with the job's number, or None if none came in `timeout` seconds.

        Raises JobEnded, after all of the job's messages.
        """
        ...

    def restart(self, job: int) -> None:
        """Restart job number `job` after it exited. No message of the old one follows."""
        ...

    def kill(self, job: int) -> None:
        """Kill job number `job`, which is stuck, as if killed from outside."""
        ...


class JobProcesses:
    """Jobs as processes, each in a separate session, so that a Ctrl-C at the terminal reaches only the main process."""

    def __init__(self, count: int, setup: JobSetup) -> None:
        self.count = count
        self._setup = setup
        self._messages: queue.SimpleQueue[tuple[int, AnyMessage | None]] = queue.SimpleQueue()
        self._processes: list[JobProcess] = []

    def __enter__(self) -> Self:
        """Start the processes."""
        self._processes = [self._begin(number) for number in range(self.count)]
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the processes and their workers. Those that do not exit are killed, or left behind if that fails."""
        for process in self._processes:
            process.ask_to_leave()
        _end(self._processes, SECONDS_TO_LEAVE)

    def start(self, job: int, task: Slice) -> None:
        """Run a slice as job number `job`."""
        self._processes[job].send(task)

    def answer(self, job: int, *, granted: bool) -> None:
        """Answer the last claim of job number `job`."""
        self._processes[job].send(granted)

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        """Return the next message of any job, with the job's number, or None if none came in `timeout` seconds."""
        try:
            job, message = self._messages.get(timeout=timeout)
        except queue.Empty:
            return None
        if message is None:
            process = self._processes[job]
            raise JobEnded(job, process.last_words(job), killed=process.was_killed)
        return job, message

    def restart(self, job: int) -> None:
        """Restart job number `job` after it exited, and stop its remaining workers."""
        _end([self._processes[job]], 0.0)
        self._processes[job] = self._begin(job)

    def kill(self, job: int) -> None:
        """Kill job number `job`, and its children."""
        self._processes[job].kill()

    def _begin(self, number: int) -> "JobProcess":
        process = JobProcess(replace(self._setup, job=number, path=tuple(sys.path)))
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()
        return process

    def _listen(self, number: int, process: "JobProcess") -> None:
        for message in process.messages():
            self._messages.put((number, message))
        self._messages.put((number, None))


def _end(processes: Sequence["JobProcess"], seconds: float) -> None:
    """Wait this long for jobs that are leaving, then kill what is left of them."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.wait(deadline)
    for process in processes:
        process.kill()
    deadline = time.monotonic() + SECONDS_TO_DIE
    for process in processes:
        process.end(deadline)


class JobProcess:
    """One job as a process, with its pipes and its standard error. Its session has all of its descendants."""

    def __init__(self, setup: JobSetup) -> None:
        self._files = contextlib.ExitStack()
        self._errors = self._files.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed in end()
        self._process = subprocess.Popen(
            tethered.command("attnfuzz.harness.campaign.job"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # It forks the process that forks workers.
            env={**os.environ, **tethered.ENVIRONMENT},
            start_new_session=True,
        )
        self._itself = left_behind.running(self._process.pid)
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._write, daemon=True).start()
        self.send(setup)

    def send(self, order: JobSetup | Slice | bool) -> None:
        """Send an order, or the answer to a claim.

        A slice's time counts from now, even if the process is still starting.
        """
        if isinstance(order, Slice):
            order = replace(order, handed_at=time.monotonic())
        self._orders.put(msgspec.json.encode(order) + b"\n")

    def _write(self) -> None:
        """Write orders into the pipe, which a job that is stuck does not empty. No order is empty, except the last."""
        assert self._process.stdin is not None
        with self._process.stdin as pipe, contextlib.suppress(BrokenPipeError):
            while order := self._orders.get():
                # Not buffered: nothing must be left to flush.
                while order:
                    order = order[os.write(pipe.fileno(), order) :]
        # The reader of messages notices a job that exited.

    def messages(self) -> Iterator[AnyMessage]:
        """Yield the process's messages, until it has exited."""
        assert self._process.stdout is not None
        decoder = msgspec.json.Decoder(AnyMessage, dec_hook=decode_any)
        # A job that dies may leave half a message.
        with self._process.stdout, contextlib.suppress(msgspec.DecodeError):
            for line in self._process.stdout:
                yield decoder.decode(line)
        self._process.wait()

    @property
    def was_killed(self) -> bool:
        """Whether a signal killed it. After SIGTERM it exits in order with status 0, and in no other case."""
        return self._process.returncode <= 0

    def last_words(self, number: int) -> str:
        """Return its standard error, and how it ended."""
        self._errors.seek(0)
        status = self._process.returncode
        how = f"was killed by signal {-status}" if self.was_killed and status else f"ended with status {status}"
        return self._errors.read().decode(errors="replace") + f"(job process {number} {how})"

    def ask_to_leave(self) -> None:
        """Ask it to stop itself and its workers in order."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def wait(self, deadline: float) -> None:
        """Wait for its end until `deadline`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))

    def kill(self) -> None:
        """Kill it and its descendants."""
        for each in self._left():
            left_behind.kill(each)

    def end(self, deadline: float) -> None:
        """Wait for the end of it and its descendants, which were killed. At `deadline` the others are left behind."""
        self.wait(deadline)
        while left := self._left():
            if time.monotonic() >= deadline:
                for each in left:
                    left_behind.note(each.pid)
                break
            # One that was forked meanwhile is killed, too.
            self.kill()
            time.sleep(_SECONDS_PER_LOOK)
        self._orders.put(b"")
        self._files.close()

    def _left(self) -> list[left_behind.LeftProcess]:
        members = left_behind.of_session(self._process.pid)
        # The id of a session is reused when its last process has ended.
        leader = next((each for each in members if each.pid == self._process.pid), self._itself)
        return members if leader == self._itself else []
