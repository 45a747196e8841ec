"""A server under test: traces are run on it, its cache is flushed, and requests are asked alone."""

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from http import HTTPStatus

from msgspec.structs import replace

from attnfuzz.harness.serve.client import Client, HttpAnswer, NoAnswer, ServerError, StreamRefused, TookTooLong
from attnfuzz.harness.serve.dialects import ServedApi
from attnfuzz.harness.serve.discovery import APIS, discover, warm_up
from attnfuzz.harness.serve.launch import LaunchedServer, answers
from attnfuzz.harness.serve.metrics import ServerCounters, read_counters
from attnfuzz.harness.serve.reply import BadReply, Sent
from attnfuzz.harness.serve.surface import Ability, Speaks, Surface
from attnfuzz.harness.serve.trace import Abort, RequestTrace, ServedRequest
from attnfuzz.harness.verdict.printable import in_a_line

FLUSH_TRIES = 3
SECONDS_BETWEEN_FLUSHES = 2.0

SECONDS_IN_PREFILL = 0.02
SECONDS_TO_SETTLE = 10.0
"""Time in which a server that got no more requests has to become idle."""

LEAST_PATIENCE = 30.0

CANCELLED = 499
"""The status of a request that was not sent, because another had found the server gone."""


class Busy(ServerError):
    """The cache could not be flushed, since requests of others are running."""


@dataclass(kw_only=True)
class TestedServer:
    """A server at the address of `client`, at most `concurrency` requests of which are under way.

    It is `mine` if it may be flushed and crashed. `launched` can restart it. `timeout` bounds one request.
    """

    __test__ = False

    client: Client
    mine: bool
    concurrency: int
    timeout: float
    launched: LaunchedServer | None = None
    surface: Surface = field(init=False)
    busy_seconds: float = field(default=0.0, init=False)
    requests_sent: int = field(default=0, init=False)
    tokens_generated: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Begin without baselines."""
        self._alone: dict[ServedRequest, Sent] = {}
        self._flush_path: str | None = None
        self._known = False
        self._gone = threading.Event()
        self._names = itertools.count(1)

    def find_out(self) -> Surface:
        """Discover the surface, and whether the cache can be flushed. Raises ServerError."""
        self.surface = discover(self.client)
        if self.mine and self._find_flush() is not None:
            self.surface = replace(self.surface, can=(*self.surface.can, Ability.FLUSH))
        self._known = True
        return self.surface

    @property
    def flush_path(self) -> str | None:
        """The path that flushes the cache; None if there is none, or the server is not ours."""
        return self._flush_path

    @property
    def api(self) -> ServedApi:
        """The API that it speaks."""
        return APIS[self.surface.speaks]

    def restart(self, stopped: Callable[[], bool] = lambda: False) -> float:
        """Restart it, and return the seconds until it has answered. Raises ServerError."""
        assert self.launched is not None
        seconds, began = self.launched.start(stopped), time.monotonic()
        try:
            self.begin_anew()
        except NoAnswer as error:
            raise ServerError(f"--start: the server is ready, but does not answer a request: {error}") from None
        return seconds + time.monotonic() - began

    def begin_anew(self) -> None:
        """Take it for another process: ask every request alone again, and warm it up. Raises NoAnswer.

        The first requests after a start may take longer than `timeout`, which is no failure of a trace.
        """
        self._alone.clear()
        if self._known:
            warm_up(self.client, self.surface)

    @property
    def _patience(self) -> float:
        """Seconds for an answer that needs no model: a short --timeout is for requests."""
        return max(self.timeout, LEAST_PATIENCE)

    @property
    def alive(self) -> bool:
        """Whether it runs and answers that it is healthy."""
        ended = self.launched is not None and self.launched.exit_status is not None
        return not ended and answers(self.client)

    def counters(self) -> ServerCounters:
        """Read the server's metrics now; empty if it has none."""
        if Ability.METRICS not in self.surface.can:
            return ServerCounters()
        answer = self.client.ask("GET", self.api.metrics, timeout=self._patience)
        return read_counters(answer.body.decode(errors="replace")) if answer.ok else ServerCounters()

    def settled(self) -> ServerCounters:
        """Read the server's metrics once it is idle, or after a while."""
        until = time.monotonic() + SECONDS_TO_SETTLE
        while not (now := self.counters()).idle and time.monotonic() < until:
            time.sleep(0.05)
        return now

    def flush(self) -> None:
        """Flush the prefix cache, in three tries. Raises Busy, NoAnswer; does nothing where it can't be flushed."""
        if Ability.FLUSH not in self.surface.can:
            return
        for again in range(FLUSH_TRIES):
            if again:
                time.sleep(SECONDS_BETWEEN_FLUSHES)
            if self._flushed(self.client.ask("POST", self._flush_path or "", timeout=self._patience)):
                return
        raise Busy(
            f"{self.client.address} did not flush its cache in {FLUSH_TRIES} tries: it is busy with requests of "
            "others. Give a server of your own"
        )

    def _find_flush(self) -> str | None:
        for path in APIS[self.surface.speaks].flushes:
            answer = self.client.ask("POST", path, timeout=self._patience)
            # 404, 405: there is no such path. Anything else is an answer of the path, maybe that it is busy.
            if answer.status not in {404, 405}:
                self._flush_path = path
                return path
        return None

    @staticmethod
    def _flushed(answer: HttpAnswer) -> bool:
        said = answer.json
        # vLLM answers 200 with {"success": false}, SGLang 400.
        return answer.ok and not (isinstance(said, dict) and said.get("success") is False)

    def alone(self, request: ServedRequest) -> Sent:
        """Return the answer to a request that is asked alone, after a flush; remembered."""
        asked = request.as_asked_alone
        if asked not in self._alone:
            self._alone[asked] = self.ask_alone(asked)
        return self._alone[asked]

    def ask_alone(self, request: ServedRequest) -> Sent:
        """Ask a request alone, after a flush. Raises Busy or NoAnswer."""
        self.flush()
        self._gone.clear()
        with self._timed():
            return self._counted([self._send(request.as_asked_alone, self._name())])[0]

    def run(self, trace: RequestTrace) -> list[Sent]:
        """Send the requests of a trace as it says, and wait for all. Raises ServerError."""
        self._gone.clear()
        futures: list[Future[Sent]] = []
        with self._timed(), ThreadPoolExecutor(self.concurrency) as threads:
            for burst in trace.bursts:
                if burst.after_all:
                    wait(futures)
                if burst.pause and not self._gone.is_set():
                    self._gone.wait(burst.pause)
                futures += [threads.submit(self._send, request, self._name()) for request in burst.requests]
        return self._counted([future.result() for future in futures])

    def _counted(self, sent: list[Sent]) -> list[Sent]:
        """Count requests and tokens, in the one thread that asks."""
        self.requests_sent += sum(each.status != CANCELLED for each in sent)
        completions = [each for one in sent if one.reply for each in one.reply.completions]
        self.tokens_generated += sum(len(each.tokens) for each in completions)
        return sent

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.busy_seconds += time.monotonic() - began

    def _name(self) -> str:
        """Name the next request: numbered in the order of the trace, whichever thread sends it."""
        return f"attnfuzz-{next(self._names)}"

    def _send(self, request: ServedRequest, name: str) -> Sent:
        if self._gone.is_set():
            return Sent(error="not sent: the server died", status=CANCELLED)
        body, headers = self.api.body(request, self.surface, name), self.api.headers(request)
        try:
            if request.abort is not None:
                self._send_and_abort(request.abort, body, headers, name)
                return Sent(closed=True)
            answer = self.client.ask("POST", self.api.generate, body, timeout=self.timeout, headers=headers)
        except TookTooLong as error:
            return Sent(error=str(error), status=-1)
        except StreamRefused as error:
            return Sent(error=str(error), status=error.status)
        except NoAnswer as error:
            self._gone.set()
            return Sent(error=str(error), status=0)
        return self._read(answer, request, name)

    def _read(self, answer: HttpAnswer, request: ServedRequest, name: str) -> Sent:
        if not answer.ok:
            return Sent(error=answer.words, status=answer.status)
        try:
            reply = self.api.reply(answer.json, request)
        except BadReply as error:
            return Sent(error=f"invalid answer: {error}", status=answer.status)
        if reply.name is not None and reply.name != name:
            return Sent(error=f"the answer is that of {self.client.without_token(reply.name)}, not of {name}")
        return Sent(reply=reply)

    def _send_and_abort(self, abort: Abort, body: dict[str, object], headers: Mapping[str, str], name: str) -> None:
        path, timeout = self.api.generate, self.timeout
        if abort is Abort.DECODE:
            lines = self.client.lines(path, body | {"stream": True}, timeout=timeout, headers=headers)
            with contextlib.closing(lines):
                first = next((line for line in lines if line.startswith(b"data:")), b"")
            if b'"error"' in first and "error" in (json.loads(first[5:] or b"{}") or {}):
                words = in_a_line(self.client.without_token(first.decode(errors="replace")))
                raise StreamRefused(HTTPStatus.BAD_REQUEST, words)
        else:
            seconds = SECONDS_IN_PREFILL if abort is Abort.PREFILL else 0.0
            self.client.send_and_close(path, body, wait=seconds, timeout=timeout, headers=headers)
        if self.surface.speaks is Speaks.SGLANG:
            self.client.ask("POST", "/abort_request", {"rid": name}, timeout=self._patience)
