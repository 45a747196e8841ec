"""`attnfuzz replay` and `export` of findings that come and go."""

from pathlib import Path

import pytest
from command_line import Attnfuzz
from fake_archive import archive
from fake_search import observed
from harness_cases import decode_case

from attnfuzz.harness.findings.finding import Finding
from attnfuzz.harness.sanitizer import run as sanitizer
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.recurrence import SEEN_ONCE_RUNS, Recurrence, Rerun, Trial
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case

# Backends of a user's file run in workers alone.
pytestmark = pytest.mark.slow

INTERMITTENT = Path(__file__).parents[2] / "fakes" / "intermittent_backend.py"
ROW_OF_NAN = observed(Kind.NOT_FINITE)
FAULT = observed(Kind.ILLEGAL_ACCESS, "query")


def filed(home: Path, name: str, recurrence: Recurrence, *before: Case, failure: Observation = ROW_OF_NAN) -> str:
    case = decode_case(f"{INTERMITTENT}:{name}")
    finding = Finding(case=case, first=case, observation=failure, report="", recurrence=recurrence, history=before)
    return str(archive(home).file(finding, Fingerprint.of(case.backend, failure))[0])


@pytest.mark.long
def test_a_finding_of_each_17th_launch_is_repeated_until_it_fails(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    path = filed(tmp_path, "EVERY_17_NAN", Recurrence(way=Rerun.ALONE, runs=136, failed=8))
    ran = attnfuzz("replay", path)
    assert ran.code == 1
    assert "8 of 136 runs failed (5.9%; 95% confidence interval 3% to 11%)" in ran.err
    assert "1 of 17 runs failed" in ran.out
    assert attnfuzz("replay", f"{path}/case.json").code == 0, "a case alone is run once"
    often = attnfuzz("replay", path, "--repeat", "40")
    assert (often.code, "2 of 40 runs failed" in often.out) == (1, True)
    fixed = attnfuzz("replay", path, "--backend", f"{INTERMITTENT}:EVERY_1000000_NAN")
    assert fixed.code == 0
    said = "none of 151 runs failed. At its recorded rate, it would show in 151 runs with a probability of 99%."
    assert f"EVERY_1000000_NAN: {said}" in " ".join(fixed.out.split())
    assert "passes" not in fixed.out
    few = attnfuzz("replay", path, "--backend", f"{INTERMITTENT}:EVERY_1000000_NAN", "--repeat", "3")
    assert "none of 3 runs failed. It takes 151 runs to show it with a probability of 99%." in " ".join(few.out.split())


def test_without_the_command_a_run_under_it_is_refused_in_a_line(
    attnfuzz: Attnfuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sanitizer, "_command", lambda: None)
    file = tmp_path / "case.json"
    case_file.save(file, decode_case("trtllm_mha"))
    ran = attnfuzz("replay", str(file), "--sanitizer", "racecheck")
    assert ran.code == 2
    lacking = "Error: compute-sanitizer is not on PATH: it comes with NVIDIA's CUDA toolkit"
    assert ran.err.splitlines()[1:] == [lacking]
    path = filed(tmp_path, "EVERY_17_NAN", Recurrence(way=Rerun.ALONE, runs=2, failed=1), failure=observed(Kind.RACE))
    again = attnfuzz("replay", path)
    assert (again.code, again.err.splitlines()[1:]) == (2, [lacking])


def test_a_finding_that_needs_another_case_runs_it_first(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    before = decode_case(f"{INTERMITTENT}:AFTER_1_NAN", *range(1, 9))
    path = filed(tmp_path, "AFTER_1_NAN", Recurrence(way=Rerun.HISTORY, runs=4, failed=4, history=1), before)
    ran = attnfuzz("replay", path)
    assert ran.code == 1
    assert "1 of 1 run failed" in ran.out


def test_a_finding_that_needs_load_is_run_beside_others(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    path = filed(tmp_path, "EVERY_4_NAN", Recurrence(way=Rerun.LOAD, runs=100, failed=25, load=2))
    ran = attnfuzz("replay", path)
    assert ran.code == 1
    assert "2 of 8 runs failed" in ran.out


def test_replay_of_a_finding_seen_once_lists_the_attempts_to_repeat_it(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    once = Recurrence(way=Rerun.ALONE, runs=96, failed=0, tried=(Trial(Rerun.ALONE, 64), Trial(Rerun.GUARD, 32)))
    path = filed(tmp_path, "EVERY_1000000_FAULT", once, failure=FAULT)
    ran = attnfuzz("replay", path)
    assert ran.code == 0
    assert "Seen once: it did not fail again. 0 of 64 runs failed, repeated in one worker; " in ran.err
    said = f"none of {SEEN_ONCE_RUNS} runs failed. It was seen only once, so no number of runs shows that it is fixed."
    assert said in " ".join(ran.out.split())


def test_a_finding_without_the_cases_before_it_can_not_be_replayed(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    path = filed(tmp_path, "AFTER_1_NAN", Recurrence(way=Rerun.HISTORY, runs=4, failed=4, history=1))
    ran = attnfuzz("replay", path)
    assert ran.code == 2
    assert "before-000.json" in ran.err
