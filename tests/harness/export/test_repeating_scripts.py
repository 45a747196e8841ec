"""Scripts of failures that come and go: they make their calls until the fault shows, or would have."""

import subprocess
import sys
from pathlib import Path

import pytest
from fake_search import observed
from harness_cases import decode_case
from msgspec.structs import replace
from run_scripts import outcomes

from attnfuzz.harness.export import CannotExport, Exporter, Target
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.recurrence import SEEN_ONCE_RUNS, Recurrence, Rerun

CASE = decode_case("torch_sdpa", 6, 9, padded=2)
MISMATCH = observed()
FAULT = observed(Kind.ILLEGAL_ACCESS, "query")
AT_TIMES = Recurrence(way=Rerun.ALONE, runs=136, failed=8)
ONCE = Recurrence(way=Rerun.ALONE, runs=500, failed=0)


def script(runner: Runner, failed: Observation, recurrence: Recurrence, **target: Target) -> str:
    return Exporter(CASE, runner, failed=failed, recurrence=recurrence).script(**target)


def planted(text: str, mistake: str) -> str:
    """The script with a mistake at the 17th time that its calls are made."""
    start = "def run():\n"
    assert start in text
    return text.replace(
        start, f"TIMES = []\n\n\n{start}    TIMES.append(1)\n    if len(TIMES) == 17:\n        {mistake}\n"
    )


@pytest.mark.slow
def test_scripts_repeat_their_calls_in_one_process(runner: Runner, tmp_path: Path) -> None:
    mismatch, fault = script(runner, MISMATCH, AT_TIMES), script(runner, FAULT, ONCE)
    scripts = {
        "passes": mismatch,
        "once": fault,
        "wrong": planted(mismatch, "return True"),
        "dies": planted(fault, "__import__('ctypes').string_at(16, 1)"),
    }
    paths = {name: tmp_path / f"{name}.py" for name in scripts}
    for name, text in scripts.items():
        paths[name].write_text(text)
    # What a script does to memory and processes shows in a process of its own alone.
    running = tmp_path / "running.py"
    running.write_text("import sys; from run_scripts import run_each; run_each(sys.argv[1:])")
    ran = subprocess.run([sys.executable, running, *paths.values()], capture_output=True, text=True, check=True)
    ended = outcomes(paths, ran.stdout)
    runs = AT_TIMES.runs_to_show
    assert {name: code for name, (code, _) in ended.items()} == {"passes": 0, "once": 0, "wrong": 1, "dies": 1}
    assert f"made the calls {runs} times, of up to {runs}" in ended["passes"][1]
    assert f"made the calls {SEEN_ONCE_RUNS} times" in ended["once"][1]
    assert f"made the calls 17 times, of up to {runs}" in ended["wrong"][1]
    assert "died of SIGSEGV" in ended["dies"][1]


def test_a_script_says_how_often_it_fails_and_that_it_repeats(runner: Runner) -> None:
    text = script(runner, MISMATCH, Recurrence(way=Rerun.LOAD, runs=136, failed=8, load=4))
    assert "8 of 136 runs failed" in text
    assert "Start 4 of this script at the same time." in text


def test_a_failure_that_needs_earlier_cases_has_no_script(runner: Runner) -> None:
    with pytest.raises(CannotExport, match="after other cases"):
        script(runner, MISMATCH, Recurrence(way=Rerun.HISTORY, runs=4, failed=4, history=1))


def test_a_failure_before_the_last_step_has_no_script_once_it_passes(runner: Runner) -> None:
    first, second = decode_case("torch_sdpa", 6, 9, padded=2), decode_case("torch_sdpa", 7, 10, padded=2)
    two = replace(first, steps=(*first.steps, *second.steps))
    assert Exporter(two, runner, failed=replace(MISMATCH, step=1), recurrence=AT_TIMES).script()
    with pytest.raises(CannotExport, match="calls of the last step, after the failure"):
        Exporter(two, runner, failed=MISMATCH, recurrence=AT_TIMES).script()


@pytest.mark.parametrize("target", list(Target))
def test_a_script_repeats_only_flaky_failures(runner: Runner, target: Target) -> None:
    case = decode_case("trtllm_mha", 6, 9, padded=2)
    assert "repeated()" not in Exporter(case, runner).script(target)
    assert "repeated()" in Exporter(case, runner, failed=MISMATCH, recurrence=AT_TIMES).script(target)
