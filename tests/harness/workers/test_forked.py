"""Nurseries that jobs and commands fork before they need them.

Tests start a process that forks it, and that may be killed.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from random_kills import command_line, running

from attnfuzz.harness.workers.forked import fork_ahead, take

SCRIPT = """
import json, os, select, signal, sys
from attnfuzz.harness.workers import forked

forked.fork_ahead()
forked.fork_ahead()
from attnfuzz.harness.workers.supervisor import Workers
from attnfuzz.harness.workers.postmortem import Death

def tell(**said):
    print(json.dumps(said), flush=True)

def lineage(workers):
    worker = int(workers.run(b"who", timeout=60).split()[0])
    return worker, int(open(f"/proc/{worker}/stat").read().rpartition(")")[2].split()[1])

with Workers("deadly_handlers:obey", environment={"PLANTED": "yes"}) as workers:
    worker, nursery = lineage(workers)
    files = [os.readlink(f"/proc/{nursery}/fd/{number}") for number in os.listdir(f"/proc/{nursery}/fd")]
    other = os.readlink(f"/proc/self/fd/{forked._ahead[0].control.fileno()}")
    unused = forked._ahead[0].process
    forked.dismiss()
    about = {"session": os.getsid(nursery), "group": os.getpgid(nursery), "files": files, "other": other}
    tell(worker=worker, nursery=nursery, dismissed=unused.returncode is not None, **about)
    sys.stdin.readline()
    worker_ended = os.pidfd_open(worker)
    os.kill(nursery, signal.SIGKILL)
    # The worker is killed with it.
    select.select([worker_ended], [], [])
    while isinstance(workers.run(b"who", timeout=60), Death):
        pass
    worker, nursery = lineage(workers)
    tell(worker=worker, nursery=nursery)
    sys.stdin.readline()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def said(job: subprocess.Popen[str]) -> dict[str, Any]:
    assert job.stdout is not None
    answer: dict[str, Any] = json.loads(job.stdout.readline())
    return answer


def go_on(job: subprocess.Popen[str]) -> None:
    assert job.stdin is not None
    job.stdin.write("\n")
    job.stdin.flush()


def ends(*pids: int) -> bool:
    """Whether processes end. A busy machine may take long."""
    deadline = time.monotonic() + 60
    while running(pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not running(pids)


@pytest.mark.slow
def test_a_nursery_is_forked_once_and_then_started(job: subprocess.Popen[str]) -> None:
    first = said(job)
    assert command_line(first["nursery"]) == command_line(job.pid)
    assert (first["session"], first["group"]) == (os.getsid(job.pid), first["nursery"])
    assert "/dev/null" in first["files"]
    assert any("attnfuzz-nursery-output" in each for each in first["files"])
    assert first["other"] not in first["files"]
    assert first["dismissed"]
    go_on(job)
    second = said(job)
    assert ends(first["worker"])
    assert second["nursery"] != first["nursery"]


@pytest.mark.slow
def test_a_forked_nursery_ends_with_its_parent(job: subprocess.Popen[str]) -> None:
    first = said(job)
    assert running([first["nursery"], first["worker"]]) == [first["nursery"], first["worker"]]
    os.kill(job.pid, signal.SIGKILL)
    assert ends(first["worker"], first["nursery"])


def test_a_process_with_threads_forks_none() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        fork_ahead()
        assert take() is None
    finally:
        done.set()
        thread.join()
