"""Processes that tests fork are to their parent what it would have started."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from forked_python import started_processes

from attnfuzz.harness.workers import tethered

pytestmark = pytest.mark.slow

SAY = """
import os, sys
print(os.getppid(), os.getsid(0) == os.getpid(), os.environ.get("PLANTED"), os.getcwd(), sys.argv, file=sys.stderr)
print(os.read(int(sys.argv[1]), 5), sys.stdin.read())
sys.exit(3)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "say.py").write_text(SAY)
    monkeypatch.chdir(tmp_path)
    return "say"


def said(module: str) -> tuple[str, str, int]:
    """What the module printed, and its exit code."""
    reading, writing = os.pipe()
    os.write(writing, b"hello")
    with subprocess.Popen(
        tethered.command(module, str(reading)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[reading],
        start_new_session=True,
        env={**os.environ, "PLANTED": "yes"},
        text=True,
    ) as process:
        os.close(writing)
        output, errors = process.communicate("words")
    os.close(reading)
    return output, errors.replace(f"'{reading}'", "'0'"), process.returncode


def test_a_forked_process_has_the_same_state_as_a_started_one(module: str) -> None:
    forked = said(module)
    with started_processes():
        assert said(module) == forked
    assert f"{os.getpid()} True yes " in forked[1]
    assert forked[2] == 3


def test_a_forked_process_can_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wait.py").write_text("import time\ntime.sleep(600)")
    with subprocess.Popen(tethered.command("wait")) as process:
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_a_forked_process_leads_its_session_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wait.py").write_text("import time\ntime.sleep(600)")
    for _ in range(20):
        with subprocess.Popen(tethered.command("wait"), start_new_session=True) as process:
            os.kill(process.pid, signal.SIGSTOP)
            session = os.getsid(process.pid)
            os.kill(process.pid, signal.SIGKILL)
        assert session == process.pid
