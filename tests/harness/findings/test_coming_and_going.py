"""The files of findings that come and go."""

from pathlib import Path

import pytest
from fake_archive import FINGERPRINT, archive, found
from fake_search import decode
from msgspec.structs import replace

from attnfuzz.harness.findings.record import RecordError, read_record
from attnfuzz.harness.verdict.recurrence import Recurrence, Rerun, Trial

BEFORE = (decode(3), decode(4))
AFTER_TWO = Recurrence(way=Rerun.HISTORY, runs=9, failed=8, history=2, tried=(Trial(Rerun.ALONE, 32, 0),))
ONCE = Recurrence(way=Rerun.ALONE, runs=500, failed=0)


def test_a_finding_keeps_its_rate_and_the_cases_before_it(tmp_path: Path) -> None:
    path, _ = archive(tmp_path).file(replace(found(), recurrence=AFTER_TWO, history=BEFORE), FINGERPRINT)
    record = read_record(path)
    assert record.recurrence == AFTER_TWO
    assert record.before == BEFORE
    assert {"before-000.json", "before-001.json"} <= {file.name for file in path.iterdir()}


def test_a_finding_without_the_cases_before_it_is_damaged(tmp_path: Path) -> None:
    path, _ = archive(tmp_path).file(replace(found(), recurrence=AFTER_TWO, history=BEFORE), FINGERPRINT)
    (path / "before-001.json").unlink()
    with pytest.raises(RecordError, match=r"before-001\.json"):
        read_record(path)


def test_what_was_seen_once_is_not_run_again_on_later_nights(tmp_path: Path) -> None:
    path, _ = archive(tmp_path).file(replace(found(), recurrence=ONCE), FINGERPRINT)
    assert read_record(path).recurrence == ONCE
    assert archive(tmp_path, "night 2").past(["fake"]) == []


def test_what_comes_and_goes_is_run_again(tmp_path: Path) -> None:
    archive(tmp_path).file(replace(found(), recurrence=AFTER_TWO, history=BEFORE), FINGERPRINT)
    (record,) = archive(tmp_path, "night 2").past(["fake"])
    assert record.recurrence == AFTER_TWO
