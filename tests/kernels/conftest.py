"""What the tests of backends share: guarded memory, launches on record, and workers that may die."""

from collections.abc import Callable, Iterator

import pytest
import torch
from forked_python import forked_processes
from recorder import Launched, Recorder

from attnfuzz.harness.backends.registry import load
from attnfuzz.harness.inside.launcher import JournalingLauncher
from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.reference.case import Case


@pytest.fixture(scope="session")
def arena() -> Arena:
    """Address space for guarded memory, of which a process has little enough for a few dozen arenas only."""
    return Arena()


@pytest.fixture
def bench_of(arena: Arena) -> Iterator[Callable[..., Bench]]:
    """Makes a bench for a case; its launches go to `recorder`, if one is given."""
    opened = []

    def make(case: Case, recorder: Recorder | None = None) -> Bench:
        memory = GuardedMemory(arena, case.guard, case.outputs)
        opened.append(memory)
        return Bench(memory, JournalingLauncher(memory, lambda _: None, recorder), torch.device("cpu"))

    yield make
    for memory in opened:
        memory.release()


@pytest.fixture
def launches_of(bench_of: Callable[..., Bench]) -> Callable[[Case], list[Launched]]:
    """Runs all steps of a case on its backend, unjudged, and tells what was launched."""

    def run(case: Case) -> list[Launched]:
        recorder = Recorder()
        session = load(case.backend).open(case, bench_of(case, recorder))
        for index in range(len(case.steps)):
            session.forward(index)
        return recorder.launches

    return run


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    """Judges cases in workers."""
    with forked_processes():
        runner = Runner()
    with runner:
        yield runner


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    """Nurseries are forked off a process that has imported torch: each file of a user's backend takes one."""
    with forked_processes():
        yield
