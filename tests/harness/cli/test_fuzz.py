"""`fuzz`, `replay`, `backends` and `export` with real backends: exit codes and what is left behind."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign_events import checked, filed, finished, kept, searched, slice_finished, started
from campaign_process import begin
from command_line import Attnfuzz
from fake_search import decode
from msgspec.structs import replace

from attnfuzz.harness.campaign.events import (
    CampaignFinished,
    CampaignStarted,
    CaseAwaited,
    Event,
    JobFailed,
    JobReady,
    LedgerRemark,
)
from attnfuzz.harness.campaign.knowledge import JOB_KILLED, OUT_OF_TIME
from attnfuzz.harness.campaign.log import read_log
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.messages import NOT_COME_BACK

BEFORE = "trtllm_mha@21649-before"


@pytest.mark.slow
def test_a_correct_backend_is_clean(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    ran = attnfuzz("fuzz", "--backend", "torch_sdpa", "--examples", "20", "--seed", "1")
    assert ran.code == 0
    assert "No findings in " in ran.out
    (log,) = (tmp_path / "attnfuzz-out/campaigns").glob("*/events.ndjson")
    events = read_log(log)
    assert isinstance(events[0], CampaignStarted)
    assert isinstance(events[-1], CampaignFinished)
    assert Standing.of(events).score("torch_sdpa").tally.searched == 20
    assert {"report.html", "junit.xml", "summary.md"} <= {path.name for path in log.parent.iterdir()}
    assert f"Report: {log.relative_to(tmp_path).parent}/report.html" in ran.out


@pytest.fixture
def finding(attnfuzz: Attnfuzz) -> tuple[str, Any]:
    """The path of a finding of the backend as it was before a fix, and how the campaign ended."""
    ran = attnfuzz("fuzz", "--backend", BEFORE, "--examples", "100", "--until-finding", "--seed", "4")
    line = next(line for line in ran.out.splitlines() if line.startswith("  attnfuzz replay "))
    return line.split()[-1], ran


@pytest.mark.slow
def test_a_bug_is_found_filed_and_replayed(finding: tuple[str, Any], attnfuzz: Attnfuzz) -> None:
    path, ran = finding
    assert ran.code == 1
    assert {"case.json", "first.json", "report.txt"} <= {entry.name for entry in Path(path).iterdir()}
    assert attnfuzz("replay", path).code == 1
    assert attnfuzz("replay", f"{path}/case.json").code == 1
    fixed = attnfuzz("replay", path, "--backend", "trtllm_mha", "--repeat", "2")
    assert fixed.code == 0
    assert "passes on trtllm_mha: none of 2 runs failed" in fixed.out
    other = attnfuzz("replay", path, "--backend", "trtllm_mla")
    assert other.code == 2
    assert "trtllm_mla does not support" in other.err
    script = attnfuzz("export", path, "-o", "repro.py")
    assert script.code == 0
    compile(Path("repro.py").read_text(), "repro.py", "exec")


def test_backends_are_listed_with_their_capabilities(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("backends")
    assert ran.code == 0
    for name in ("trtllm_mha", BEFORE, "trtllm_mla", "torch_sdpa"):
        assert name in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_campaign_that_is_reported_to_stop_ends_in_order(tmp_path: Path, signum: signal.Signals) -> None:
    with begin(tmp_path, "--backend", "torch_sdpa", "--time", "10m") as campaign:
        campaign.wait_for("Progress")
        os.killpg(campaign.process.pid, signum)
        rest, _ = campaign.process.communicate()
    assert campaign.process.returncode == 130
    assert "Interrupted. Findings so far are kept; continue with: attnfuzz fuzz --resume --home attnfuzz-out" in rest
    last = read_log(campaign.home.log(campaign.home.ids()[-1]))[-1]
    assert isinstance(last, CampaignFinished)
    assert last.interrupted


BACKEND = "torch_sdpa"
CASE = replace(decode(5), backend=BACKEND)
FILED = filed(CASE)
CHECKED = checked(CASE, State.OPEN)
REMARK = LedgerRemark(at=60, entry=1, title="Hang in x", text="it no longer happens")


@pytest.mark.parametrize(
    ("code", "events"),
    [
        (0, []),
        (1, [FILED]),
        (1, [CHECKED]),
        (1, [replace(CHECKED, state=State.RETURNED)]),
        (0, [replace(CHECKED, state=State.FIXED)]),
        (0, [replace(FILED, known="as agreed"), replace(CHECKED, known="as agreed")]),
        (1, [replace(FILED, known="as agreed"), CHECKED]),
        (0, [REMARK]),
        (1, [FILED, REMARK]),
        (1, [kept(CASE, OUT_OF_TIME)]),
        (1, [kept(CASE, JOB_KILLED)]),
        (0, [kept(CASE, NOT_COME_BACK)]),
        (0, [kept(CASE, OUT_OF_TIME, known="as agreed")]),
        (2, [JobFailed(at=60, job=0, text="KeyError: 'a bug of ours'")]),
    ],
)
def test_the_exit_code_states_the_result(
    attnfuzz: Attnfuzz, sent: Callable[..., None], code: int, events: list[Event]
) -> None:
    sent(started(BACKEND), searched(BACKEND), *events, finished())
    ran = attnfuzz("fuzz", "--backend", BACKEND)
    assert ran.code == code
    failed = any(isinstance(event, JobFailed) for event in events)
    assert ("a bug of ours" in ran.err) == failed
    assert ("continue with: attnfuzz fuzz --resume --home attnfuzz-out" in ran.err) == failed


def test_a_gpu_that_no_longer_answers_is_reported_in_one_line(attnfuzz: Attnfuzz, sent: Callable[..., None]) -> None:
    text = "the GPU does not answer any more: no device; the case that ran last: attnfuzz replay here"
    sent(started(BACKEND), searched(BACKEND), JobFailed(at=60, job=0, text=text, fixable=True), finished())
    ran = attnfuzz("fuzz", "--backend", BACKEND)
    assert ran.code == 2
    (line,) = ran.err.splitlines()[-1:]
    assert line.startswith(f"T{text[1:]}. Findings so far are kept; continue with: attnfuzz fuzz --resume")
    assert "harness itself failed" not in ran.out + ran.err


def test_a_campaign_that_judged_nothing_has_not_passed(attnfuzz: Attnfuzz, sent: Callable[..., None]) -> None:
    sent(started(BACKEND), finished(at=50.0))
    ran = attnfuzz("fuzz", "--backend", BACKEND)
    assert ran.code == 2
    assert "No case was judged in 50 s" in ran.out
    assert ran.err.endswith("the time was over before a worker was ready; give it a longer --time\n")
    assert "No findings" not in ran.out
    sent(started(BACKEND), JobReady(at=4.0, job=0), finished(at=50.0))
    ran = attnfuzz("fuzz", "--backend", BACKEND)
    assert "a worker was ready, but the time was over before its first case was" in ran.err
    sent(started(BACKEND), JobReady(at=4.0, job=0), CaseAwaited(at=45.0, job=0, seconds=8.0), finished(at=50.0))
    ran = attnfuzz("fuzz", "--backend", BACKEND)
    assert "the time was over while a case was running, for 13 s, which may be a hang" in ran.err
    refused = slice_finished(BACKEND, unsupported={"no sinks": 9, "no window": 1})
    sent(started(BACKEND), refused, finished(at=50.0))
    ran = attnfuzz("fuzz", "--backend", BACKEND)
    assert ran.code == 2
    assert ran.err.endswith("No case was judged: no case is supported; most frequent reason: no sinks\n")
    sent(started(BACKEND), finished(at=50.0))
    assert json.loads(attnfuzz("fuzz", "--backend", BACKEND, "--json", "-").out)["clean"] is False
