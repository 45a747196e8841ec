"""Cases whose inputs are not finite: they pass if no access is wrong, and say that no more was judged."""

from pathlib import Path

import pytest
from command_line import Attnfuzz
from harness_cases import calls_of, decode_case
from small_cases import with_nan_queries

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.reference import case_file

pytestmark = pytest.mark.slow


@pytest.fixture
def case(runner: Runner, tmp_path: Path) -> str:
    calls = calls_of(runner, decode_case("trtllm_mha", 6, 9, padded=2))
    case_file.save(tmp_path / "case.json", with_nan_queries(calls))
    return "case.json"


def test_replay_says_of_how_many_rows(attnfuzz: Attnfuzz, case: str) -> None:
    ran = attnfuzz("replay", case)
    assert ran.code == 0
    assert ran.out.splitlines() == [
        "Only accesses were checked of 8 rows: their inputs are not finite, so no output is correct.",
        "case.json passes on trtllm_mha.",
    ]


def test_triage_says_of_how_many_rows(attnfuzz: Attnfuzz, case: str) -> None:
    ran = attnfuzz("triage", case, "--repeat", "2")
    assert ran.code == 0
    assert "- Only accesses were checked of 8 rows" in ran.out
