"""`attnfuzz serve`: options are checked at the door, events are shown, and torch is never imported."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Attnfuzz
from fake_llm_server import FakeFault, FakeLlm, free_port
from served_here import announce_traces, draw_again, wait_for_nothing


@pytest.fixture
def wrong() -> Iterator[FakeLlm]:
    """A stand-in on which prompts with a cached prefix are answered wrongly."""
    with FakeLlm(FakeFault.PREFIX) as server:
        yield server


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("serve", "give the URL of a server"),
        ("serve http://h --traces 3 --time 9s", "both budgets"),
        ("serve http://h --ready 9s", "--ready is the time for --start"),
        ("serve http://h --floor -1", "not a number from 0 to 100"),
        ("serve http://h --concurrency 0", "0"),
        ("serve http://h --resume", "leave URL out"),
        ("serve host", "not the URL of a server"),
        ("serve http://h --token-env NOT_SET_HERE", "NOT_SET_HERE"),
        ("serve --resume", "has no campaign to continue"),
    ],
)
def test_a_wrong_line_is_refused_with_advice(attnfuzz: Attnfuzz, line: str, said: str) -> None:
    ran = attnfuzz(*line.split())
    assert ran.code == 2
    assert said in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


def test_no_server_is_one_line_and_leaves_no_log(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    ran = attnfuzz("serve", f"http://127.0.0.1:{free_port()}", "--home", "home")
    assert ran.code == 2
    assert "no server answers" in ran.err
    assert not list(tmp_path.rglob("findings/*"))


def test_a_finding_is_shown_with_its_requests_and_its_script(
    attnfuzz: Attnfuzz, wrong: FakeLlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_nothing(monkeypatch)
    announce_traces(monkeypatch)
    draw_again(monkeypatch)
    line = ("serve", wrong.url, "--mine", "--traces", "8", "--seed", "1", "--until-finding", "--json", "answer.json")
    ran = attnfuzz(*line)
    assert ran.code == 1, ran.out + ran.err
    assert "noise floor 0: answers must be equal" in ran.out
    assert "repro.py" in ran.out
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert [finding["state"] for finding in answer["findings"]] == ["new"]
    assert answer["server"].startswith("sglang 0.5.5-fake")


CHILD = """
import sys
from attnfuzz.harness.cli.main import main
from attnfuzz.harness.serve import draw, floor
draw.MOST_OF_A_PROMPT, draw.PAUSES, draw.IDLE, floor.TRACES = 24, (0.0,), 0.0, 1
sys.argv = ["attnfuzz", "serve", sys.argv[1], "--mine", "--traces", "2", "--home", sys.argv[2]]
try:
    main()
except SystemExit as ended:
    assert ended.code == 0, ended.code
assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_a_campaign_imports_no_torch(tmp_path: Path) -> None:
    # In a process of its own: this one has imported torch.
    with FakeLlm() as server:
        ran = subprocess.run(
            [sys.executable, "-c", CHILD, server.url, str(tmp_path)], capture_output=True, text=True, check=False
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
