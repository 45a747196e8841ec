"""Stands for campaigns against servers: in this process, without waiting, in batches that depend on no clock."""

from collections.abc import Iterator
from typing import Any

import pytest
from fake_llm_server import HERE

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
