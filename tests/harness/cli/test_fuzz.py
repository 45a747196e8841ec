"""`fuzz`, `replay`, `bugs`, `backends` and `export` with real backends: exit codes and what is left behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Attnfuzz = Callable[..., Any]
BEFORE = "trtllm_mha@21649-before"


def test_a_correct_backend_is_clean(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    ran = attnfuzz("fuzz", "--backend", "torch_sdpa", "--examples", "20", "--seed", "1")
    assert ran.code == 0
    assert "No findings in 20 cases" in ran.out
    events = [json.loads(line)["event"] for line in (tmp_path / "attnfuzz-out/events.ndjson").read_text().splitlines()]
    assert events == ["CampaignStarted", "SliceFinished", "CampaignFinished"]


@pytest.fixture
def finding(attnfuzz: Attnfuzz) -> tuple[str, Any]:
    """The path of a finding of the backend as it was before a fix, and how the campaign ended."""
    ran = attnfuzz("fuzz", "--backend", BEFORE, "--examples", "100", "--seed", "4")
    line = next(line for line in ran.out.splitlines() if line.startswith("  attnfuzz replay "))
    return line.split()[-1], ran


def test_a_bug_is_found_filed_and_replayed(finding: tuple[str, Any], attnfuzz: Attnfuzz) -> None:
    path, ran = finding
    assert ran.code == 1
    assert {"case.json", "first.json", "report.txt"} <= {entry.name for entry in Path(path).iterdir()}
    assert attnfuzz("replay", path).code == 1
    assert attnfuzz("replay", f"{path}/case.json").code == 1
    fixed = attnfuzz("replay", path, "--backend", "trtllm_mha", "--times", "2")
    assert fixed.code == 0
    assert "passes on trtllm_mha 2 of 2 times" in fixed.out
    other = attnfuzz("replay", path, "--backend", "trtllm_mla")
    assert other.code == 2
    assert "trtllm_mla does not support" in other.err
    script = attnfuzz("export", path, "-o", "repro.py")
    assert script.code == 0
    compile(Path("repro.py").read_text(), "repro.py", "exec")


def test_the_reported_bugs_are_shown(attnfuzz: Attnfuzz) -> None:
    assert "21649" in attnfuzz("bugs").out
    ran = attnfuzz("bugs", "run")
    assert ran.code == 0, ran.out


def test_backends_are_listed_with_what_they_support(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("backends")
    assert ran.code == 0
    for name in ("trtllm_mha", BEFORE, "trtllm_mla", "torch_sdpa"):
        assert name in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_ctrl_c_ends_a_campaign_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "attnfuzz.harness.cli.main"]
    command += ["fuzz", "--backend", "torch_sdpa", "--time", "10m"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if "cases" in line)
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130
    assert "Interrupted. What was found before is kept." in rest
    assert '"CampaignFinished"' in (tmp_path / "attnfuzz-out/events.ndjson").read_text()
