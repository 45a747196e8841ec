"""Cases under a stand-in for compute-sanitizer, which runs the real process: the marks of both have to fit together."""

import os
import sys
import threading
import time
from pathlib import Path

import pytest
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.sanitizer import run as module
from attnfuzz.harness.sanitizer.run import NotSanitized, captures, options, prepare, run
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.sanitizer_tool import SanitizerTool
from attnfuzz.reference.case import Launch, Pace

BARRIER = """\
========= Barrier error detected. Divergent thread(s) in warp.
=========     at kernel(int *)+0xa0
=========     by thread (19,0,0) in block (0,0,0)
=========
"""
FAKE = Path(__file__).parents[2] / "fakes" / "compute-sanitizer"


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the reports of each tool. The command of this Python comes first on PATH."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "compute-sanitizer").symlink_to(FAKE)
    # The command starts with the first python3 on PATH, and looks for the program's.
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_REPORTS", str(tmp_path))
    return tmp_path


def test_options_name_the_tool_and_leave_out_kernels_of_guarded_memory_unless_their_writes_count() -> None:
    races = options(SanitizerTool.RACECHECK)
    assert races[:2] == ("--tool", "racecheck")
    assert "kernel_substring=write_runs" in races
    assert "--kernel-name-exclude" not in options(SanitizerTool.INITCHECK)


def test_a_late_device_is_made_prompt_and_a_captured_graph_is_noticed() -> None:
    case = decode_case("trtllm_mha")
    assert module.prompt(case.having(pace=Pace.LATE)) == case
    assert not captures(case)
    (step,) = case.steps
    assert captures(case.having(steps=(replace(step, launch=Launch.REPLAY),)))


def test_a_backend_on_the_cpu_is_refused_with_the_remedy(reports: Path) -> None:
    del reports
    with pytest.raises(NotSanitized, match=r"trtllm_mha runs on the CPU, .* name another --backend"):
        prepare(["trtllm_mha"], lambda _: None)


@pytest.mark.slow
def test_a_machine_that_refuses_the_command_is_quoted(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del reports
    monkeypatch.setenv("FAKE_REFUSAL", "========= Error: Failed to connect to the target process")
    with pytest.raises(NotSanitized, match=r"ran no case \(exit code 1\): Error: Failed to connect"):
        run(SanitizerTool.RACECHECK, [decode_case("trtllm_mha")], seconds=60)


@pytest.mark.slow
def test_the_reports_of_each_case_are_its_own(reports: Path) -> None:
    case = decode_case("trtllm_mha")
    (reports / "synccheck").write_text(BARRIER)
    ran = run(SanitizerTool.SYNCCHECK, [case, case.having(seed=case.seed + 1)], seconds=120)
    assert ran.ended == 2
    assert ran.why_not_all == ""
    for each in ran.reports:
        assert {report.kind for report in each} == {Kind.BARRIER_MISUSED}
        assert {report.launch.mode for report in each if report.launch} == {"decode"}


@pytest.mark.slow
def test_a_stopped_run_ends_at_once(reports: Path) -> None:
    del reports
    stop = threading.Event()
    stop.set()
    ran = run(SanitizerTool.MEMCHECK, [decode_case("trtllm_mha")], seconds=600, stop=stop)
    assert ran.ended == 0


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended(reports: Path) -> None:
    del reports
    began = time.monotonic()
    ran = run(SanitizerTool.MEMCHECK, [decode_case("trtllm_mha")], seconds=0.2)
    assert (ran.ended, ran.why_not_all) == (0, "not within 0 s")
    assert time.monotonic() - began < 10
