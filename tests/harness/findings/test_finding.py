"""What a finding is called, and what its files hold."""

from pathlib import Path

from fake_search import decode, observed
from msgspec.structs import replace

from attnfuzz.harness.findings.finding import Finding, case_path
from attnfuzz.reference import case_file


def test_a_finding_has_all_that_repeats_it() -> None:
    finding = Finding(case=decode(100), first=decode(200, 3), observation=observed(), report="the report")
    assert case_file.decode(finding.files["case.json"]) == decode(100)
    assert case_file.decode(finding.files["first.json"]) == decode(200, 3)
    assert finding.files["report.txt"] == b"the report\n"
    assert "repro.py" not in finding.files


def test_the_backend_of_a_file_makes_a_plain_folder_name_that_is_not_hidden() -> None:
    case = replace(decode(1), backend="../my dir/mine.py:Mine")
    finding = Finding(case=case, first=case, observation=observed(), report="")
    assert finding.name.startswith("__my_dir_mine.py_Mine-OutputMismatch-")


def test_a_folder_or_a_file_names_a_case(tmp_path: Path) -> None:
    assert case_path(tmp_path) == case_path(tmp_path / "case.json") == tmp_path / "case.json"
