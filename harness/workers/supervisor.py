"""Workers from the parent's side: one works, and spares stand by."""

import contextlib
import math
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Self

from attnfuzz.harness.workers import channel, gpu_core, gpu_gone, stacks
from attnfuzz.harness.workers.channel import ChannelClosed, MessageKind, NoMessage, PrintedOutput
from attnfuzz.harness.workers.gpu_gone import ASKING_GPU, GpuGone
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.lifeline import CannotStart, Lifeline, NurseryError
from attnfuzz.harness.workers.nursery import Hook, Setup
from attnfuzz.harness.workers.patience import Patience, Silence
from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.harness.workers.sticky import sticky_of
from attnfuzz.reference.user_error import UserError

_START_SECONDS = 600.0
"""Time limit for a nursery's imports and compilations."""

_SECONDS_PER_LOOK = 1.0
"""Time between two looks at the journal of a worker that starts."""

_ATTEMPTS = 10
"""Number of workers in a row that may die before their first request: a machine short of memory kills several, and a
fork is cheap.
"""


_PATIENCE = 20
"""Total time limit of a request, in timeouts, as long as it keeps launching kernels."""


_WROTE = "it wrote to the descriptors that its worker answers with"
"""Reason for killing a worker whose answer is malformed."""


class HandlerError(RuntimeError):
    """The handler raised: a fault of the harness, not of the tested code. The message is the worker's traceback."""


class Refused(HandlerError, UserError):
    """The handler raised an error that a user can fix. The message is one line with the fix."""


class _Stillborn(Exception):
    """A worker exited before it was ready."""


class Worker:
    """One worker process, forked with `arguments` from the nursery behind `lifeline`.

    `fresh` is True until its first request, `spent` if it must get no more requests. `history` has its requests.
    """

    def __init__(self, lifeline: Lifeline, arguments: Sequence[str] = ()) -> None:
        self._lifeline = lifeline
        self._journal = Journal.create()
        self._output = PrintedOutput()
        self._channel, remote = socket.socketpair()
        self._pid: int | None = None
        self._pidfd: int | None = None
        self._recorder = False
        self.fresh, self.spent = True, False
        self.history = RequestHistory()
        self._poll = select.poll()
        for descriptor in (self._channel.fileno(), self._output.fd):
            self._poll.register(descriptor, select.POLLIN)
        try:
            with remote:
                lifeline.fork(remote.fileno(), self._journal.fd, self._output.remote, arguments)
        except NurseryError:
            self.forget()
            raise
        finally:
            self._output.hand_over()

    @property
    def pid(self) -> int:
        """Its process id. Waits until it is ready. Raises _Stillborn, NurseryError or GpuGone."""
        if self._pid is None:
            until = time.monotonic() + _START_SECONDS
            self._await_start(until)
            try:
                message, _, payload = channel.receive(self._channel, until, token=channel.UNASKED)
            except (ChannelClosed, NoMessage):
                raise _Stillborn from None
            except TimeoutError:
                raise self._lifeline.failure() from None
            if message is MessageKind.GPU_GONE:
                raise GpuGone(payload.decode())
            if message is MessageKind.LEAVING:
                raise GpuGone(f"a worker that started met an error ({sticky_of(int(payload)) or 'unknown'})")
            if message is MessageKind.REFUSAL:
                raise CannotStart(payload.decode())
            if message is MessageKind.ERROR:
                raise NurseryError(f"workers can't start:\n{payload.decode()}")
            pid, recorder = map(int, payload.split())
            self._pid, self._recorder = pid, bool(recorder)
            self._watch_end()
            self._lifeline.proven = True
        return self._pid

    def _await_start(self, until: float) -> None:
        """Wait for its first message, draining its output. Raises GpuGone if the driver does not answer it."""
        asked = math.inf
        while not self._wait(min(until, time.monotonic() + _SECONDS_PER_LOOK)) and (now := time.monotonic()) < until:
            asked = min(asked, now) if self._journal.read() == ASKING_GPU else math.inf
            if asked < now and gpu_gone.on_waiting is not None:
                gpu_gone.on_waiting(now - asked)
            if now - asked > gpu_gone.SECONDS_FOR_A_CONTEXT:
                limit = f"{gpu_gone.SECONDS_FOR_A_CONTEXT:g} s"
                raise GpuGone(f"its driver did not create a CUDA context within {limit}")

    def gone(self) -> bool:
        """Return whether it exited while idle or before it was ready. Waits until it is ready."""
        try:
            return bool(self.pid and self._wait(time.monotonic()))
        except _Stillborn:
            return True

    def last_words(self) -> str:
        """Return the end of its output."""
        return self._output.words()

    def ask(self, request: bytes, *, timeout: Patience | float) -> bytes | Death:
        """Send a request and wait for the reply or the worker's end. Raises HandlerError or GpuGone.

        The worker hangs if it neither replies nor writes to its journal for as long as `timeout` allows.
        """
        patience = timeout if isinstance(timeout, Patience) else Patience(timeout, timeout, _PATIENCE * timeout)
        self.fresh = False
        self._output.forget()
        started, token = time.monotonic(), secrets.token_bytes(channel.TOKEN_BYTES)
        silence = Silence(self.pid, patience)
        try:
            channel.send(self._channel, MessageKind.REQUEST, request, token=token, deadline=started + patience.most)
            self._await_words(silence)
            message, _, reply = channel.receive(self._channel, time.monotonic() + patience.most, token=token)
        except ChannelClosed:
            hang = not self._ends(patience.most)
            return self._death(hang=hang, seconds=patience.most if hang else time.monotonic() - started)
        except TimeoutError:
            # It may have died while a process that it forked keeps its end of the channel open.
            hang = not self._ended()
            where = stacks.asked(self.pid, self._journal) if hang else ""
            self._ends(0.0)
            return self._death(hang=hang, seconds=silence.limit, where=where)
        except NoMessage:
            self._kill()
            return self._death(hang=False, seconds=time.monotonic() - started, misdeed=_WROTE)
        if message is MessageKind.LEAVING:
            return self._death(hang=False, seconds=time.monotonic() - started, exit_code=int(reply))
        return self._reply(message, reply)

    def _reply(self, message: MessageKind, reply: bytes) -> bytes:
        if message is MessageKind.GPU_GONE:
            raise GpuGone(reply.decode())
        if message is MessageKind.REFUSAL:
            raise Refused(reply.decode())
        if message is MessageKind.ERROR:
            raise HandlerError(f"the handler raised in the worker:\n{reply.decode()}")
        self.spent = message is MessageKind.LAST_REPLY
        return reply

    def _await_words(self, silence: Silence) -> None:
        """Wait for a message. Raises ChannelClosed if it exits, TimeoutError if it hangs."""
        entries = self._journal.entries
        while not self._wait(time.monotonic() + silence.until_look):
            before, entries = entries, self._journal.entries
            if entries != before:
                silence.begin_again()
            if silence.is_hang():
                raise TimeoutError
        if not select.select([self._channel], [], [], 0)[0]:
            # A forked process may keep its end of the channel open.
            raise ChannelClosed

    def _wait(self, until: float) -> bool:
        """Wait for a message or its end, draining its output. Returns False if neither comes by then."""
        while True:
            left = until - time.monotonic()
            ready = {descriptor for descriptor, _ in self._poll.poll(max(0.0, 1e3 * left))}
            if self._output.fd in ready:
                ready.remove(self._output.fd)
                if not self._output.drain():
                    self._poll.unregister(self._output.fd)
            if ready or left <= 0:
                return bool(ready)

    def _watch_end(self) -> None:
        # Without pidfd (Linux before 5.3), only the end of its channel is noticed.
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(self.pid)
            self._poll.register(self._pidfd, select.POLLIN)

    def _ended(self) -> bool:
        return self._pidfd is not None and bool(select.select([self._pidfd], [], [], 0)[0])

    def _ends(self, seconds: float) -> bool:
        """Return whether it exits by itself in this time; otherwise kill it."""
        if self._pidfd is None:
            return True
        with contextlib.suppress(KeyError):
            self._poll.unregister(self._channel)
        if self._wait(time.monotonic() + seconds):
            return True
        self._kill()
        return False

    def dispose(self) -> None:
        """Kill the process if it runs, and free its resources."""
        if self._pid is not None:
            self._kill()
            self._lifeline.reap(self._pid)
        self.forget()

    def forget(self) -> None:
        """Only close the descriptors. A starting worker exits when it finds its channel closed."""
        self._channel.close()
        self._journal.close()
        self._output.close()
        if self._pidfd is not None:
            os.close(self._pidfd)

    def _kill(self) -> None:
        # Until the nursery reaps it, the id belongs to the worker, dead or alive. Without a nursery it may be reused.
        if self._lifeline.alive:
            os.kill(self.pid, signal.SIGKILL)

    def _death(
        self, *, hang: bool, seconds: float, exit_code: int | None = None, misdeed: str = "", where: str = ""
    ) -> Death:
        """Collect the worker's remains, without waiting if it announced its exit code."""
        pid, self._pid = self.pid, None
        if exit_code is None:
            status = self._lifeline.reap(pid)
            fault = self._journal.fault()
            # The status is lost with the nursery, which its workers do not survive, or the worker does not end.
            lost = -(signal.SIGKILL if fault is None else fault.signal)
            code = os.waitstatus_to_exitcode(status) if status is not None else lost
        else:
            self._lifeline.bury(pid)
            code, fault = exit_code, self._journal.fault()
        return Death(
            signal=-code if code < 0 and not misdeed else None,
            exit_code=code if code >= 0 else None,
            hang=hang,
            seconds=seconds,
            # A process that it forked shares the journal.
            fault=fault if fault is not None and fault.signal == -code else None,
            entry=self._journal.read(),
            output=self.last_words(),
            core_dump=gpu_core.written_by(pid),
            misdeed=misdeed,
            stacks=where,
            recorder=self._recorder,
        )


class Workers:
    """Runs requests in a process that may die.

    `handler` ("module:function") is called in the worker as handler(request, journal) and returns the reply. `preload`
    names functions to call once before forking, to import, compile and warm up; one with arguments is a tuple of its
    name and them. `spares` workers stand ready behind the one at work, so that replacing a dead one takes no time. Each
    worker calls `begin` with `arguments` before it is ready; changed arguments apply to workers that are forked later.
    `environment` is added to the workers' environment. One request runs at a time, except in `run_together`. A process
    forked from this one gets workers of its own. `restarts` counts the workers that died of their requests; `history`
    are the earlier requests of the last `run`'s worker, in order.
    """

    def __init__(
        self,
        handler: str,
        preload: Sequence[Hook] = (),
        spares: int = 1,
        *,
        begin: str | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        hooks = (hook if isinstance(hook, str) else hook[0] for hook in preload)
        for name in (handler, *hooks, *filter(None, [begin])):
            if not all(name.partition(":")):
                raise ValueError(f"{name!r} names no function: write module:function")
        if spares < 0:
            raise ValueError(f"{spares} spares: at least 0")
        self._setup = Setup(
            handler=handler, preload=tuple(preload), path=sys.path, begin=begin, environment=dict(environment)
        )
        self.arguments = tuple(arguments)
        self._spares = spares
        self._team: deque[Worker] = deque()
        self._concurrent: list[Worker] = []
        self._lifeline: Lifeline | None = None
        self._owner = os.getpid()
        self.restarts = 0
        self.history: tuple[bytes, ...] = ()
        self._recruit(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, request: bytes, *, timeout: Patience | float) -> bytes | Death:
        """Return the handler's reply, or the remains of the worker if it dies or hangs.

        It hangs if it neither replies nor launches anything for `timeout` seconds, or doesn't reply within 20 times as
        long. A `Patience` has separate limits.

        Raises:
            HandlerError: the handler raised (Refused if a user can fix it). The worker survives.
            NurseryError: no worker can start.
            GpuGone: the GPU does not answer.
        """
        worker = self._ready()
        self.history = worker.history.requests
        worker.history.add(request)
        try:
            result = worker.ask(request, timeout=timeout)
        except HandlerError:
            raise
        except BaseException:
            # After an interruption, this reply must not be taken for the next one's.
            self._team.remove(worker)
            worker.dispose()
            raise
        if isinstance(result, Death):
            self._team.remove(worker)
            worker.forget()
            self.restarts += 1
            self._recruit(1 + self._spares)
        elif worker.spent:
            self._replace(worker)
        return result

    def run_together(self, requests: Sequence[bytes], *, timeout: Patience | float) -> list[bytes | Death]:
        """Run requests at the same time, each in a separate worker, and return the results in the same order.

        These workers are kept for further calls until `renew` or `close`. Raises like `run`.
        """
        self._gather(len(requests))
        workers = self._concurrent[: len(requests)]
        try:
            with ThreadPoolExecutor(len(workers)) as threads:
                asked = [
                    threads.submit(worker.ask, request, timeout=timeout)
                    for worker, request in zip(workers, requests, strict=True)
                ]
                results = [each.result() for each in asked]
        except BaseException:
            self._disperse()
            raise
        for worker, result in zip(workers, results, strict=True):
            if isinstance(result, Death):
                self._concurrent.remove(worker)
                worker.forget()
                self.restarts += 1
            elif worker.spent:
                self._concurrent.remove(worker)
                worker.dispose()
        return results

    def renew(self) -> None:
        """Use a fresh worker for the next request."""
        self._disperse()
        worker = self._ready()
        if not worker.fresh:
            self._replace(worker)

    def close(self) -> None:
        """Stop all workers and the nursery."""
        self._hang_up()

    def _replace(self, worker: Worker) -> None:
        self._team.remove(worker)
        worker.dispose()
        self._recruit(1 + self._spares)

    def _gather(self, count: int) -> None:
        """Start concurrent workers until `count` are ready."""
        words = ""
        for _ in range(_ATTEMPTS):
            lifeline = self._nursery()
            # Start all before waiting for one.
            self._concurrent += [Worker(lifeline, self.arguments) for _ in range(count - len(self._concurrent))]
            for worker in [worker for worker in self._concurrent if worker.gone()]:
                words = worker.last_words()
                self._concurrent.remove(worker)
                worker.dispose()
            if len(self._concurrent) >= count:
                return
        raise self._nursery().failure(words)

    def _disperse(self) -> None:
        for worker in self._concurrent:
            worker.dispose()
        self._concurrent.clear()

    def _ready(self) -> Worker:
        if self._owner != os.getpid():
            self._hang_up()
        words = ""
        try:
            for _ in range(_ATTEMPTS):
                self._recruit(1)
                worker = self._team[0]
                if not worker.gone():
                    # Contexts on a GPU that are created at the same time take longer: spares start when one is ready.
                    self._recruit(1 + self._spares)
                    if worker is self._team[0]:
                        return worker
                    continue
                self._team.popleft()
                words = worker.last_words()
                worker.dispose()
            raise self._nursery().failure(words)
        except (NurseryError, GpuGone):
            self._hang_up()
            raise

    def _recruit(self, count: int) -> None:
        """Fill the team up to `count` workers, ready or not."""
        for _ in range(_ATTEMPTS):
            lifeline = self._nursery()
            try:
                while len(self._team) < count:
                    self._team.append(Worker(lifeline, self.arguments))
            except NurseryError as error:
                killed = lifeline.killed()
                self._hang_up()
                if not killed:
                    raise
                last = error
            else:
                return
        raise last

    def _nursery(self) -> Lifeline:
        if self._lifeline is not None and not self._lifeline.alive and self._lifeline.killed():
            # Its workers died with it.
            self._hang_up()
        if self._lifeline is None:
            self._lifeline = Lifeline(self._setup)
        return self._lifeline

    def _hang_up(self) -> None:
        for worker in (*self._team, *self._concurrent):
            worker.forget()
        self._team.clear()
        self._concurrent.clear()
        if self._lifeline is not None:
            if self._owner == os.getpid():
                self._lifeline.close()
            else:
                self._lifeline.abandon()
            self._lifeline = None
        self._owner = os.getpid()


MOST_REQUESTS = 1000
MOST_BYTES = 8 << 20
"""Maximum total size of the requests kept of one worker."""


class RequestHistory:
    """The last requests of one worker: at most `MOST_REQUESTS`, of `MOST_BYTES` together."""

    def __init__(self) -> None:
        self._requests: deque[bytes] = deque()
        self._nbytes = 0

    def add(self, request: bytes) -> None:
        """Add a request, and drop the oldest ones for which there is no room."""
        self._requests.append(request)
        self._nbytes += len(request)
        while len(self._requests) > MOST_REQUESTS or self._nbytes > MOST_BYTES:
            self._nbytes -= len(self._requests.popleft())

    @property
    def requests(self) -> tuple[bytes, ...]:
        """The requests, in order."""
        return tuple(self._requests)
