"""Pinned cases on disk."""

from pathlib import Path

import msgspec
import pytest
from campaign_events import filed
from fake_search import decode, observed

from attnfuzz.harness.campaign.events import FindingFiled
from attnfuzz.harness.defects.pins import Pin, load_pin, save_pin
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.case_file import CaseFileError


def found(kind: Kind = Kind.HANG) -> FindingFiled:
    return filed(decode(5), observation=observed(kind))


def test_a_pin_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_pin(tmp_path / "new" / "folder", "some", found())
    pin = load_pin(tmp_path / "new" / "folder", "some")
    assert pin == Pin(killed_by="watchdog", kind=Kind.HANG, case=decode(5))


def test_a_newer_pin_replaces_an_older_one(tmp_path: Path) -> None:
    save_pin(tmp_path, "some", found())
    save_pin(tmp_path, "some", found(Kind.ILLEGAL_ACCESS))
    pin = load_pin(tmp_path, "some")
    assert pin is not None
    assert pin.killed_by == "guards"


def test_a_defect_without_a_pin_has_none(tmp_path: Path) -> None:
    assert load_pin(tmp_path, "some") is None


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"kind": "Hang"', '"kind": "Bad luck"', msgspec.ValidationError),
        ('"kind": "Hang"', '"kind": "Hang", "sort": 1', msgspec.ValidationError),
        ('"killed_by"', '"killed"', msgspec.ValidationError),
        ('"version": 1', '"version": 99', CaseFileError),
        ('"q_heads": 2', '"q_heads": 0', CaseFileError),
    ],
)
def test_a_damaged_pin_is_refused(tmp_path: Path, old: str, new: str, error: type[Exception]) -> None:
    save_pin(tmp_path, "some", found())
    path = tmp_path / "some.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(error):
        load_pin(tmp_path, "some")
