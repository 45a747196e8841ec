"""A stand-in for a server, and a server under test on it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from fake_llm_server import FakeFault, FakeLlm
from served_here import announce_traces

from attnfuzz.harness.serve.client import Client
from attnfuzz.harness.serve.target import TestedServer


@pytest.fixture(autouse=True)
def _in_known_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a trace run together however busy the machine is."""
    announce_traces(monkeypatch)


@pytest.fixture
def fake() -> Iterator[Callable[[FakeFault], FakeLlm]]:
    """Starts stand-ins with a fault, which end with the test."""
    with ExitStack() as stack:
        yield lambda fault: stack.enter_context(FakeLlm(fault))


@pytest.fixture
def tested(fake: Callable[[FakeFault], FakeLlm]) -> Callable[[FakeFault], TestedServer]:
    """Makes a server under test of a stand-in, whose surface is found out."""

    def make(fault: FakeFault) -> TestedServer:
        timeout = 0.5 if fault is FakeFault.HANG else 60
        server = TestedServer(client=Client.of(fake(fault).url), mine=True, concurrency=8, timeout=timeout)
        server.find_out()
        return server

    return make
