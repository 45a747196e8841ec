"""Stands for campaigns against servers: in this process, without waiting, in batches that depend on no clock."""

import http.client
import io
import itertools
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from fake_llm_server import HERE, FakeFault, FakeLlm

from attnfuzz.harness.serve.client import Client
from attnfuzz.harness.serve.target import TestedServer
from attnfuzz.harness.serve.trace import Burst, Prompt, RequestTrace, ServedRequest

REQUEST = ServedRequest(prompt=Prompt(stream=0, shared=5), tokens=1)
AGAIN = RequestTrace(bursts=(Burst(requests=(REQUEST,)), Burst(requests=(REQUEST,), after_all=True)))
"""A request that comes again: the second finds its prompt in the cache."""


def wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a campaign wait for nothing and calibrate briefly: the stand-in is ready at once, and is never noisy."""
    quick = {
        "target.SECONDS_BETWEEN_FLUSHES": 0.0,
        "target.SECONDS_TO_SETTLE": 0.2,
        "hunt.SECONDS_TO_COME_BACK": 0.1,
        "hunt.SECONDS_BETWEEN_LOOKS": 0.01,
        "check.SECONDS_TO_DIE": 0.0,
        "launch.SECONDS_BETWEEN_LOOKS": 0.02,
        "draw.PAUSES": (0.0,),
        "draw.IDLE": 0.0,
        "draw.MOST_OF_A_PROMPT": 24,
        "floor.TRACES": 2,
    }
    for name, value in quick.items():
        monkeypatch.setattr(f"attnfuzz.harness.serve.{name}", value)
    _answer_at_once(monkeypatch)


def _answer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handle requests in the threads that make them, without connections. A server that hangs keeps its own."""
    connection = Client._connection

    def at_once(client: Client, timeout: float) -> http.client.HTTPConnection:
        made, llm = connection(client, timeout), HERE.get(client.port)
        if llm is not None and llm.fault is not FakeFault.HANG:
            made.sock = cast("Any", _Wire(llm))
        return made

    monkeypatch.setattr(Client, "_connection", at_once)


class _Wire:
    """A client's end of a connection: the server answers while the client reads."""

    _numbers = itertools.count()

    def __init__(self, llm: FakeLlm) -> None:
        if llm.http.fileno() < 0:
            raise ConnectionRefusedError
        self._llm, self._address, self._request = llm, ("here", next(self._numbers)), b""
        self._wait: float | None = None
        with llm.changed:
            llm.unread[self._address] = None

    def sendall(self, data: bytes) -> None:
        self._request += data

    def makefile(self, *_: Any) -> io.BytesIO:
        """Return the answer, after it is complete."""
        end = _ServerEnd(self._request)
        self._llm.http.RequestHandlerClass(cast("Any", end), self._address, self._llm.http)
        return io.BytesIO(end.answer)

    def settimeout(self, seconds: float) -> None:
        self._wait = seconds

    def recv(self, _: int) -> bytes:
        """Wait for the answer, which is dropped. The server goes on."""
        answering = threading.Thread(target=self.makefile, daemon=True)
        answering.start()
        answering.join(self._wait)
        return b""

    def close(self) -> None: ...


class _ServerEnd:
    def __init__(self, request: bytes) -> None:
        self._request, self.answer = request, b""

    def makefile(self, *_: Any) -> io.BytesIO:
        return io.BytesIO(self._request)

    def sendall(self, data: bytes) -> None:
        self.answer += data

    def close(self) -> None: ...


def draw_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing but AGAIN."""
    monkeypatch.setattr("attnfuzz.harness.serve.draw.SlicesAhead._draw", lambda *_: [AGAIN])


def announce_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Announce each trace to the stand-in that it goes to, which must be in this process."""
    run = TestedServer.run

    def announced(server: TestedServer, trace: RequestTrace) -> Any:
        if (llm := HERE.get(server.client.port)) is not None:
            llm.expect(batches_of(trace, server.concurrency))
        return run(server, trace)

    monkeypatch.setattr(TestedServer, "run", announced)


def batches_of(trace: RequestTrace, concurrency: int) -> Iterator[int]:
    """The numbers of requests that a client has under way together, in turn.

    It sends requests in their order, until `concurrency` of them wait for an answer; one that is closed soon does not.
    """
    size = waiting = 0
    for burst in trace.bursts:
        if burst.after_all and size:
            yield size
            size = waiting = 0
        for request in burst.requests:
            size += 1
            waiting += request.abort not in {"sent", "prefill"}
            if waiting == concurrency:
                yield size
                size = waiting = 0
    if size:
        yield size
