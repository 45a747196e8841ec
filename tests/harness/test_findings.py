"""Findings on disk, and which failures count as the same."""

from pathlib import Path

import pytest
from fake_search import decode, observed
from msgspec.structs import replace

from attnfuzz.harness.failures import Kind
from attnfuzz.harness.findings import Finding, case_path, file_finding
from attnfuzz.harness.fingerprint import Fingerprint, features, fine
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case, Guard
from attnfuzz.reference.relation import Relation


def finding(case: Case) -> Finding:
    return Finding(case=case, first=decode(200, 3), observation=observed(), report="the report")


def test_a_finding_is_a_folder_with_all_that_repeats_it(tmp_path: Path) -> None:
    path = file_finding(finding(decode(100)), tmp_path / "findings")
    assert path.name.startswith("fake-OutputMismatch-")
    assert case_file.load(path / "case.json") == decode(100)
    assert case_file.load(path / "first.json") == decode(200, 3)
    assert (path / "report.txt").read_text() == "the report\n"
    assert not (path / "repro.py").exists()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_finding_replaces_what_an_earlier_campaign_left(tmp_path: Path) -> None:
    first = file_finding(finding(decode(100)), tmp_path)
    (first / "old.txt").touch()
    again = file_finding(finding(decode(101)), tmp_path)
    assert first == again
    assert case_file.load(again / "case.json") == decode(101)
    assert not (again / "old.txt").exists()


def test_a_finding_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(case_file, "save", full)
    with pytest.raises(OSError, match="No space left"):
        file_finding(finding(decode(100)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_backend_of_a_file_makes_a_plain_folder_name(tmp_path: Path) -> None:
    path = file_finding(finding(replace(decode(1), backend="../my dir/mine.py:Mine")), tmp_path)
    assert path.parent == tmp_path
    assert path.name.startswith(".._my_dir_mine.py_Mine-OutputMismatch-")


def test_a_folder_or_a_file_names_a_case(tmp_path: Path) -> None:
    path = file_finding(finding(decode(100)), tmp_path)
    assert case_path(path) == case_path(path / "case.json") == path / "case.json"


def test_the_coarse_fingerprint_tells_places_apart() -> None:
    assert Fingerprint.of("b", observed(place="key")) != Fingerprint.of("b", observed(place="value"))


def test_the_fine_fingerprint_is_about_features_and_not_about_numbers_or_places() -> None:
    assert fine(decode(5), observed()) == fine(decode(9), observed(place="key"))
    assert fine(decode(5), observed()) != fine(decode(5), observed(Kind.NOT_FINITE))
    assert fine(decode(5), observed()) != fine(decode(0), observed())
    assert fine(decode(5), observed()) == fine(replace(decode(5), guard=Guard.LEFT), observed())


def test_features_name_what_is_special() -> None:
    assert features(replace(decode(5), relation=Relation.SPLITS_CHANGED)) == ("decode", "splits changed")
    assert features(decode(5)) == ("decode",)
    assert features(decode(0, 5)) == ("decode", "several requests", "empty kv")
