"""`attnfuzz shrink`: what it writes, what it says, and what it refuses."""

from pathlib import Path

import pytest
from command_line import Attnfuzz
from harness_cases import draft_extend_case
from msgspec.structs import replace

from attnfuzz.harness.reduce.meaning import compiled_for
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case

MALFORMED = Path(__file__).parents[1] / "short_seq_lens.json"
LONG = "1000h"
FAILING = draft_extend_case("trtllm_mha@21649-before")


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    path = tmp_path / "failing.json"
    case_file.save(path, FAILING)
    return path


@pytest.mark.slow
def test_a_smaller_case_lies_beside_the_first_and_gets_no_smaller(attnfuzz: Attnfuzz, failing: Path) -> None:
    ran = attnfuzz("shrink", failing.name, "--time", LONG)
    assert ran.code == 1
    small = case_file.load(failing.with_name("failing.small.json"))
    assert isinstance(small, Case)
    assert [len(step.requests) for step in small.steps] == [1]
    assert ran.out.index("before\n") < ran.out.index("after\n") < ran.out.index("IllegalAccess: cum_seq_lens_q")
    assert ran.out.splitlines()[-3:] == [
        "  attnfuzz replay failing.small.json",
        "  attnfuzz triage failing.small.json",
        "  attnfuzz export failing.small.json -o repro.py",
    ]
    assert attnfuzz("replay", "failing.small.json").code == 1
    assert case_file.load(failing) == FAILING
    again = attnfuzz("shrink", "failing.small.json", "--time", LONG)
    assert again.code == 1
    assert "no smaller case fails in the same way" in again.out


@pytest.mark.slow
def test_a_finding_and_calls_are_shrunk_where_they_are_asked_for(
    attnfuzz: Attnfuzz, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "trtllm_mha-v1.5"
    folder.mkdir()
    calls = case_file.load(MALFORMED)
    assert isinstance(calls, CallCase)
    case_file.save(folder / "case.json", replace(calls, notes=("the pool had 900 pages",)))
    ran = attnfuzz("shrink", folder.name)
    assert ran.code == 1
    assert ran.out.count("note      the pool had 900 pages\n") == 1
    small = tmp_path / "trtllm_mha-v1.5.small.json"
    assert small.stat().st_size < (folder / "case.json").stat().st_size
    assert attnfuzz("replay", small.name).code == 1
    monkeypatch.chdir(folder)
    ran = attnfuzz("shrink", ".")
    assert f"{small.name} exists" in ran.err.replace("\n", "")
    assert attnfuzz("shrink", ".", "-o", "../smaller.json", "--max-runs", "1").code == 1
    assert isinstance(case_file.load(tmp_path / "smaller.json"), CallCase)


@pytest.mark.slow
def test_beside_findings_of_a_home_nothing_is_written(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    finding = tmp_path / "attnfuzz-out" / "findings" / "trtllm_mha-v1.5"
    finding.mkdir(parents=True)
    case_file.save(finding / "case.json", FAILING)
    assert attnfuzz("shrink", str(finding.relative_to(tmp_path)), "--max-runs", "1").code == 1
    assert [path.name for path in finding.parent.iterdir()] == [finding.name]
    assert case_file.load(tmp_path / "attnfuzz-out" / f"{finding.name}.small.json")


@pytest.mark.slow
def test_calls_keep_the_shape_of_their_kernels_if_asked(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    large = case_file.load(MALFORMED)
    assert attnfuzz("shrink", str(MALFORMED), "--same-kernels", "-o", "small.json").code == 1
    small = case_file.load(tmp_path / "small.json")
    assert isinstance(large, CallCase)
    assert isinstance(small, CallCase)
    assert compiled_for(small) == compiled_for(large)
    assert len(case_file.encode(small)) < len(case_file.encode(large))


@pytest.mark.slow
def test_no_file_is_written_over_unasked(attnfuzz: Attnfuzz, failing: Path) -> None:
    mine = failing.with_name("failing.small.json")
    mine.write_text("mine")
    ran = attnfuzz("shrink", failing.name)
    assert ran.code == 2
    assert "failing.small.json exists" in ran.err
    assert mine.read_text() == "mine"
    assert attnfuzz("shrink", failing.name, "-o", failing.name).code == 2
    assert attnfuzz("shrink", failing.name, "--force", "--max-runs", "1").code == 1
    assert case_file.load(mine)


@pytest.mark.slow
def test_a_passing_case_is_not_shrunk(attnfuzz: Attnfuzz, failing: Path) -> None:
    ran = attnfuzz("shrink", failing.name, "--backend", "trtllm_mha")
    assert ran.code == 0
    assert "passes on trtllm_mha: there is nothing to shrink" in ran.out
    assert not failing.with_name("failing.small.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("nothing.json",), "does not exist"),
        (("failing.json", "-o", "absent/small.json"), "absent is not a folder"),
        (("failing.json", "--max-runs", "0"), "--max-runs"),
        (("failing.json", "--time", "soon"), "'soon' is not a duration"),
        (("failing.json", "--backend", "trtllm_mah"), "unknown backend"),
        (("failing.json", "--backend", "torch_sdpa"), "torch_sdpa does not support"),
    ],
)
def test_bad_input_is_one_line(attnfuzz: Attnfuzz, failing: Path, options: tuple[str, ...], words: str) -> None:
    ran = attnfuzz("shrink", *options)
    assert failing.exists()
    assert ran.code == 2
    assert words in ran.err
    assert "Traceback" not in ran.err
