"""What tests of the harness share: workers, and cases for the backends in tests/fakes/defective_backend.py."""

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache
from pathlib import Path

import pytest
from forked_python import forked_processes, started_processes

from attnfuzz.harness.backends import rehearsal
from attnfuzz.harness.findings.environment import environment
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.workers.supervisor import Workers


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """No test cuts the power. 5,000 calls take 25 s in those of campaigns and the command line, while nothing runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_machine() -> Iterator[None]:
    """The environment does not change: looking it up takes git, a compiler and nvidia-smi at each of 60 campaigns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnfuzz.harness.campaign.run.environment", cache(environment))
        yield


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    """Nurseries and jobs are forked off a process that has imported torch."""
    with forked_processes():
        yield


@pytest.fixture
def started() -> Iterator[None]:
    """Nurseries and jobs start as they do for users: for tests of how they start."""
    with started_processes():
        yield


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def defective() -> str:
    """The file of backends with defects; name one after a colon."""
    return f"{Path(__file__).parents[1] / 'fakes' / 'defective_backend.py'}"


@pytest.fixture(scope="session", autouse=True)
def _one_stage() -> Iterator[None]:
    """All rehearsals of users' backends on one stage: it costs 2 s to start, and each gets a worker of its own.

    Workers import from the folders that were on the path when their stage began, so that each path has one.
    """
    kept: dict[tuple[str, ...], Workers] = {}
    start = rehearsal.stage

    with ExitStack() as at_the_end, pytest.MonkeyPatch.context() as patch:

        def stage() -> AbstractContextManager[Workers]:
            path = tuple(map(str, sys.path))
            if path not in kept:
                kept[path] = at_the_end.enter_context(start())
            kept[path].renew()
            return nullcontext(kept[path])

        patch.setattr(rehearsal, "stage", stage)
        yield
