"""A server that --start starts: ready, restarted after a crash, and ended with all its processes."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from hypothesis.strategies import SearchStrategy

from attnfuzz.harness.serve.campaign import ServePlan
from attnfuzz.harness.serve.client import Client, ServerError, free_port
from attnfuzz.harness.serve.draw import traces
from attnfuzz.harness.serve.launch import LaunchedServer
from attnfuzz.harness.serve.run import run_against
from attnfuzz.harness.serve.surface import Surface
from attnfuzz.harness.serve.trace import RequestTrace

# A server is a process: only one that is started can be ended.
pytestmark = pytest.mark.slow

FAKE = Path(__file__).parents[2] / "fakes" / "fake_llm_server.py"


def _launched(command: str, port: int, tmp_path: Path, ready: float = 20) -> LaunchedServer:
    return LaunchedServer(command, Client.of(f"http://127.0.0.1:{port}"), tmp_path / "server.log", ready=ready)


def test_all_processes_of_a_server_end(tmp_path: Path) -> None:
    port = free_port()
    beside = tmp_path / "child"
    # A child that ignores SIGTERM, in the server's group.
    code = (
        "import os, signal, sys, time, runpy\n"
        "if os.fork() == 0:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"    open({str(beside)!r}, 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        f"sys.argv = ['', '{port}']\n"
        f"runpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    script = tmp_path / "server.py"
    script.write_text(code)
    launched = _launched(f"{sys.executable} {script}", port, tmp_path)
    launched.start()
    child = int(beside.read_text())
    os.kill(child, 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("attnfuzz.harness.serve.launch.SECONDS_TO_END", 0.5)
        launched.end()
    # The process that inherits an orphan may not have waited for it.
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_crash_is_found_the_server_restarted_and_the_trace_minimized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnfuzz.harness.serve.draw.PAUSES", (0.0,))
    monkeypatch.setattr("attnfuzz.harness.serve.campaign.MOST_SECONDS_TO_SHRINK", 6.0)
    gentle = []

    def seen(surface: Surface, concurrency: int, **how: bool) -> SearchStrategy[RequestTrace]:
        gentle.append(how["gentle"])
        return traces(surface, concurrency, **how)

    monkeypatch.setattr("attnfuzz.harness.serve.campaign.traces", seen)
    port = free_port()
    served = run_against(
        ServePlan(
            url=f"http://127.0.0.1:{port}",
            out=tmp_path,
            start=f"{sys.executable} {FAKE} {port} crash",
            concurrency=8,
            traces=60,
            seed=1,
            timeout=5.0,
            until_finding=True,
        )
    )
    assert set(gentle) == {False}, "a server that is started here is ours"
    (finding,) = served.standing.filed.values()
    assert finding.fault.kind.value == "ServerDied"
    assert finding.needs.count("scored prompt") == 1
    assert len(served.standing.restarts) > 1
    assert (Path(finding.path) / "server.log").exists()
    assert "prompt log-probabilities" in [each.ability for each in served.standing.avoided]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no-such-program-here", "cannot run no-such-program-here"),
        (f"{sys.executable} -c pass", "ended with 0 before it was ready"),
        (f'{sys.executable} -c "import time; time.sleep(60)"', "not ready after 0.5 s"),
        ("'", "as a shell would read it"),
        ("  ", "--start is empty"),
    ],
)
def test_a_command_that_starts_no_server_is_refused_in_a_line(tmp_path: Path, command: str, said: str) -> None:
    with pytest.raises(ServerError, match=said):
        _start_and_end(command, tmp_path)


def _start_and_end(command: str, tmp_path: Path) -> None:
    launched = _launched(command, free_port(), tmp_path, ready=0.5 if "sleep" in command else 20)
    try:
        launched.start()
    finally:
        launched.end()


def test_a_server_that_is_there_already_is_not_taken_for_ours(tmp_path: Path) -> None:
    port = free_port()
    first = _launched(f"{sys.executable} {FAKE} {port}", port, tmp_path)
    first.start()
    try:
        with pytest.raises(ServerError, match=r"answers at .* already"):
            _launched(f"{sys.executable} {FAKE} {port}", port, tmp_path).start()
    finally:
        first.end()


def test_a_server_that_is_killed_is_seen(tmp_path: Path) -> None:
    port = free_port()
    launched = _launched(f"{sys.executable} {FAKE} {port}", port, tmp_path)
    launched.start()
    os.killpg(int(launched.pid or 0), signal.SIGKILL)
    until = time.monotonic() + 10
    while launched.exit_status is None and time.monotonic() < until:
        time.sleep(0.01)
    assert launched.exit_status == -signal.SIGKILL
    launched.end()
