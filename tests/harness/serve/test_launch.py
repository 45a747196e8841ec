"""A server that --start starts: ready, restarted after a crash, and ended with all its processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_llm_server import TOKEN, free_port
from served_here import wait_for_nothing

from attnfuzz.harness.serve.campaign import ServePlan
from attnfuzz.harness.serve.client import Client, ServerError
from attnfuzz.harness.serve.launch import LaunchedServer, group_runs
from attnfuzz.harness.serve.run import run_against

# A server is a process: only one that is started can be ended.
pytestmark = pytest.mark.slow

FAKE = Path(__file__).parents[2] / "fakes" / "fake_llm_server.py"


def _launched(command: str, port: int, tmp_path: Path, ready: float = 60) -> LaunchedServer:
    return LaunchedServer(command, Client.of(f"http://127.0.0.1:{port}"), tmp_path / "server.log", ready=ready)


def test_all_processes_of_a_server_end(tmp_path: Path) -> None:
    port = free_port()
    beside = tmp_path / "child"
    # A child that ignores SIGTERM, in the server's group.
    code = (
        "import os, signal, sys, time, runpy\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "if not (child := os.fork()):\n"
        "    time.sleep(600)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        f"open({str(beside)!r}, 'w').write(str(child))\n"
        f"sys.argv = ['', '{port}']\n"
        f"runpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    script = tmp_path / "server.py"
    script.write_text(code)
    launched = _launched(f"{sys.executable} {script}", port, tmp_path)
    launched.start()
    group = int(launched.pid or 0)
    os.kill(int(beside.read_text()), 0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("attnfuzz.harness.serve.launch.SECONDS_TO_END", 0.5)
        launched.end()
    _wait_for_end(group)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no-such-program-here", "cannot run no-such-program-here: no such program"),
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
    launched = _launched(command, free_port(), tmp_path, ready=0.5 if "sleep" in command else 60)
    try:
        launched.start()
    finally:
        launched.end()


def test_a_server_that_is_there_already_is_not_taken_for_ours(tmp_path: Path) -> None:
    port = free_port()
    first = _launched(f"{sys.executable} {FAKE} {port}", port, tmp_path)
    first.start()
    try:
        with pytest.raises(ServerError, match=r"already answers at"):
            _launched(f"{sys.executable} {FAKE} {port}", port, tmp_path).start()
    finally:
        first.end()


def test_a_server_that_is_killed_is_seen_and_started_again(tmp_path: Path) -> None:
    port = free_port()
    launched = _launched(f"{sys.executable} {FAKE} {port}", port, tmp_path)
    launched.start()
    group = int(launched.pid or 0)
    os.killpg(group, signal.SIGKILL)
    _wait_for_end(group)
    # Its threads may outlive its first one, which is a zombie from then on.
    until = time.monotonic() + 60
    while launched.exit_status is None and time.monotonic() < until:
        time.sleep(0.01)
    assert launched.exit_status == -signal.SIGKILL
    assert launched.start() > 0
    launched.end()


ATTNFUZZ = """
import sys, time
from pathlib import Path
from attnfuzz.harness.serve.client import Client
from attnfuzz.harness.serve.launch import LaunchedServer
command, url, log = sys.argv[1:]
launched = LaunchedServer(command, Client.of(url), Path(log), ready=60)
launched.start()
print(launched.pid, flush=True)
time.sleep(600)
"""


def test_all_processes_of_a_server_end_with_an_attnfuzz_that_is_killed(tmp_path: Path) -> None:
    port = free_port()
    command = f'sh -c "sleep 600 & exec {sys.executable} {FAKE} {port}"'
    line = [sys.executable, "-c", ATTNFUZZ, command, f"http://127.0.0.1:{port}", str(tmp_path / "log")]
    with subprocess.Popen(line, stdout=subprocess.PIPE) as attnfuzz:
        assert attnfuzz.stdout is not None
        group = int(attnfuzz.stdout.readline())
        assert group_runs(group)
        attnfuzz.kill()
    _wait_for_end(group)


def test_a_command_ignores_no_signal_because_of_its_keeper(tmp_path: Path) -> None:
    launched = _launched("sed -n s/SigIgn://p /proc/self/status", free_port(), tmp_path)
    with pytest.raises(ServerError, match="ended with 0"):
        launched.start()
    assert not int(launched.tail(), 16) >> (signal.SIGPIPE - 1) & 1
    launched.end()


def test_no_file_has_the_token_that_a_server_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_nothing(monkeypatch)
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    port = free_port()
    plan = ServePlan(
        url=f"http://127.0.0.1:{port}",
        out=tmp_path,
        start=f"{sys.executable} {FAKE} {port} tells",
        token_env="MY_TOKEN",  # noqa: S106 - a variable's name
        traces=8,
        seed=1,
        until_finding=True,
    )
    served = run_against(plan)
    (finding,) = served.standing.filed.values()
    assert "failed with [token]" in finding.fault.message
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"events.ndjson", "report.html", "junit.xml", "repro.py", "environment.json"} <= {
        each.name for each in files
    }
    assert [each.read_text().strip() for each in files if each.name == "server.log"] == ["api_key=[token]"] * 2
    assert not [path for path in files if TOKEN in path.read_text()]


def test_a_command_with_the_token_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    start = f"server --api-key={TOKEN}"
    with pytest.raises(ServerError, match="has the token, which would be logged") as raised:
        run_against(ServePlan(url="http://h", out=tmp_path, start=start, token_env="MY_TOKEN"))  # noqa: S106
    assert TOKEN not in str(raised.value)


def _wait_for_end(group: int) -> None:
    until = time.monotonic() + 60
    while group_runs(group):
        assert time.monotonic() < until, "a process of the group runs on"
        time.sleep(0.01)
