"""Processes that do not end when they are killed."""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from attnfuzz.harness.workers import forked, left_behind, lifeline, nursery
from attnfuzz.harness.workers.lifeline import Lifeline
from attnfuzz.harness.workers.nursery import Setup


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def _none_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_behind, "_noted", set())


def test_noted_processes_are_named_as_long_as_they_exist(process: subprocess.Popen[bytes]) -> None:
    assert left_behind.words() == ""
    left_behind.note(process.pid)
    assert left_behind.words() == (
        f"1 process could not be ended, and is left behind ({process.pid}): the GPU's driver does not let go of them"
    )
    process.kill()
    # A zombie has ended.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert left_behind.words() == ""
    process.wait()
    left_behind.note(process.pid)
    assert left_behind.words() == ""


def test_the_processes_of_a_session_are_found_and_killed(process: subprocess.Popen[bytes]) -> None:
    (found,) = left_behind.of_session(process.pid)
    assert found.pid == process.pid
    left_behind.kill(found._replace(started=found.started - 1))
    assert process.poll() is None
    left_behind.kill(found)
    assert process.wait() == -signal.SIGKILL


def test_a_child_that_cannot_be_killed_is_not_waited_for(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(left_behind, "_SECONDS_TO_DIE", 0.05)
    with monkeypatch.context() as without_effect:
        without_effect.setattr(os, "killpg", lambda *_: None)
        left_behind.end_group(process)
    assert str(process.pid) in left_behind.words()
    left_behind.end_group(process)
    assert process.returncode == -signal.SIGKILL
    assert left_behind.words() == ""


@pytest.mark.slow
def test_a_nursery_waits_for_the_end_of_a_worker_only_so_long() -> None:
    """A child that ends on request, like one that a driver holds: it can't be killed before."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writing)
        os.read(reading, 1)
        os._exit(7)
    os.close(reading)
    assert not nursery._ends(pid, 0.05)
    os.close(writing)
    assert nursery._ends(pid, 60)
    assert os.waitstatus_to_exitcode(nursery._reaped(pid)) == 7


class FakeProcess:
    """A nursery's process that no signal ends, with the id of a real one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode = None

    def poll(self) -> None:
        return None

    def wait(self, timeout: float | None = None) -> int:
        assert timeout is not None, "it would wait for ever"
        raise subprocess.TimeoutExpired("nursery", timeout)

    def send_signal(self, number: int) -> None:
        del number

    def kill(self) -> None:
        pass


@pytest.fixture
def silent(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Lifeline]:
    """A connection to a nursery that never answers and does not end."""
    control, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = forked.Nursery(FakeProcess(process.pid), control, os.memfd_create("output"))
    monkeypatch.setattr(forked, "take", lambda: made)
    monkeypatch.setattr(lifeline, "_SECONDS_TO_ANSWER", 0.05)
    with remote:
        yield Lifeline(Setup(handler="a:b", preload=(), path=[]))


@pytest.mark.slow
def test_a_nursery_that_does_not_answer_is_given_up_and_left_behind(
    silent: Lifeline, process: subprocess.Popen[bytes]
) -> None:
    assert silent.reap(1) is None
    assert not silent.alive
    silent.proven = True
    silent.close()
    assert str(process.pid) in left_behind.words()


def test_a_worker_that_does_not_end_is_noted(
    silent: Lifeline, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lifeline, "_receive", lambda *_: nursery.Reaped(None))
    assert silent.reap(process.pid) is None
    assert silent.alive
    assert str(process.pid) in left_behind.words()
    silent.close()
