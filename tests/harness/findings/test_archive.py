"""Findings on disk: written whole, filed once, and followed from night to night."""

import errno
import json
import shutil
from pathlib import Path

import pytest
from fake_archive import FINGERPRINT, archive, found
from fake_search import decode
from msgspec.structs import replace

from attnfuzz.harness.files import durable
from attnfuzz.harness.findings import archive as archive_module
from attnfuzz.harness.findings.archive import forget
from attnfuzz.harness.findings.record import RecordError, read_record
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.recurrence import Recurrence, Rerun, Trial
from attnfuzz.reference import case_file


class Killed(BaseException):
    """Ends a campaign at a moment of the test's choice, as SIGKILL does: nothing is cleaned up."""


def test_a_finding_is_a_folder_with_all_that_repeats_it(tmp_path: Path) -> None:
    path, state = archive(tmp_path, environment={"torch": "2.13"}).file(found(), FINGERPRINT)
    assert state is State.NEW
    assert path.name.startswith("fake-OutputMismatch-")
    names = {entry.name for entry in path.iterdir()}
    assert names == {"case.json", "first.json", "report.txt", "environment.json", "finding.json"}
    assert json.loads((path / "environment.json").read_text()) == {"torch": "2.13"}
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_bug_appears_stays_is_fixed_and_returns(tmp_path: Path) -> None:
    path, state = archive(tmp_path, "night 1").file(found(), FINGERPRINT)
    assert state is State.NEW
    assert archive(tmp_path, "night 2").checked(path.name, fails=True) is State.OPEN
    assert archive(tmp_path, "night 3").checked(path.name, fails=False) is State.FIXED
    assert archive(tmp_path, "night 4").checked(path.name, fails=False) is State.FIXED
    assert archive(tmp_path, "night 5").file(found(), FINGERPRINT) == (path, State.RETURNED)
    assert archive(tmp_path, "night 6").checked(path.name, fails=True) is State.OPEN


def test_a_bug_that_is_found_again_is_the_same_finding_with_its_latest_case(tmp_path: Path) -> None:
    first = archive(tmp_path, "night 1")
    path, _ = first.file(found(100), FINGERPRINT)
    first.add_script(path.name, "print()")
    assert (path / "repro.py").read_text() == "print()"
    again, state = archive(tmp_path, "night 2").file(found(101), FINGERPRINT)
    assert (again, state) == (path, State.OPEN)
    assert case_file.load(path / "case.json") == decode(101)
    assert not (path / "repro.py").exists()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_report_says_why_the_last_script_does_not_show_the_failure(tmp_path: Path) -> None:
    own = archive(tmp_path, "night 1")
    path, _ = own.file(found(), FINGERPRINT)
    before = (path / "report.txt").read_text().rstrip()
    for script, obstacle, words in (
        (None, "no time", "\n\nNo script shows the failure: no time."),
        ("print()", "too slow", "\n\nThe script has not shown the failure: too slow."),
        ("print()", "", ""),
    ):
        own.add_script(path.name, script, obstacle)
        assert (path / "report.txt").read_text() == f"{before}{words}\n"


def test_a_script_of_a_finding_that_was_removed_is_not_written(tmp_path: Path) -> None:
    own = archive(tmp_path, "night 1")
    path, _ = own.file(found(), FINGERPRINT)
    forget(path)
    own.add_script(path.name, "print()")
    assert not path.exists()


def test_other_features_make_another_finding(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "night 1").file(found(100), FINGERPRINT)
    other, state = archive(tmp_path, "night 2").file(found(0), FINGERPRINT)
    assert other != path
    assert state is State.NEW


def test_a_bug_that_passed_once_and_is_found_in_the_same_campaign_is_open(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "night 1").file(found(), FINGERPRINT)
    night = archive(tmp_path, "night 2")
    assert night.checked(path.name, fails=False) is State.FIXED
    assert night.file(found(), FINGERPRINT) == (path, State.OPEN)
    assert night.checked(path.name, fails=False) is State.OPEN


def test_a_campaign_that_files_again_after_it_was_killed_gets_the_same_answer(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "night 1").file(found(), FINGERPRINT)
    assert archive(tmp_path, "night 1").file(found(), FINGERPRINT) == (path, State.NEW)
    archive(tmp_path, "night 2").checked(path.name, fails=False)
    assert archive(tmp_path, "night 3").checked(path.name, fails=True) is State.RETURNED
    assert archive(tmp_path, "night 3").checked(path.name, fails=True) is State.RETURNED


def test_past_findings_are_those_of_earlier_campaigns_and_of_the_backends_asked_for(tmp_path: Path) -> None:
    night = archive(tmp_path, "night 1")
    path, _ = night.file(found(), FINGERPRINT)
    assert night.past(["fake"]) == []
    (record,) = archive(tmp_path, "night 2").past(["fake", "other"])
    assert (record.name, record.path, record.state) == (path.name, path, State.NEW)
    assert (record.case, record.fingerprint, record.observation) == (decode(100), FINGERPRINT, found().observation)
    assert archive(tmp_path, "night 2").past(["other"]) == []


def test_past_findings_are_as_they_were_before_the_campaign_was_killed(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "night 1").file(found(), FINGERPRINT)
    archive(tmp_path, "night 2").checked(path.name, fails=False)
    (record,) = archive(tmp_path, "night 2").past(["fake"])
    assert record.state is State.NEW
    assert archive(tmp_path, "night 3").past(["fake"])[0].state is State.FIXED


def test_findings_that_failed_last_come_before_passing_ones(tmp_path: Path) -> None:
    night = archive(tmp_path, "night 1")
    passing, _ = night.file(found(), FINGERPRINT)
    failing, _ = night.file(found(kind=Kind.RAISED), FINGERPRINT)
    archive(tmp_path, "night 2").checked(passing.name, fails=False)
    assert [record.name for record in archive(tmp_path, "night 3").past(["fake"])] == [failing.name, passing.name]


def test_first_and_last_seen_record_time_and_versions_of_failures(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "night 1", {"torch": "2.12"}, now=1.0).file(found(), FINGERPRINT)
    archive(tmp_path, "night 2", {"torch": "2.13"}, now=2.0).checked(path.name, fails=True)
    archive(tmp_path, "night 3", {"torch": "2.14"}, now=3.0).checked(path.name, fails=False)
    (record,) = archive(tmp_path, "night 4").past(["fake"])
    assert record.state is State.FIXED
    first, last = record.first_seen, record.last_seen
    assert (first.campaign, first.time, first.environment) == ("night 1", 1.0, {"torch": "2.12"})
    assert (last.campaign, last.time, last.environment) == ("night 2", 2.0, {"torch": "2.13"})


def test_the_history_of_a_hundred_equal_campaigns_is_short(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "night 0", now=0.0).file(found(), FINGERPRINT)
    for number in range(1, 100):
        assert archive(tmp_path, f"night {number}", now=number).checked(path.name, fails=True) is State.OPEN
    (record,) = archive(tmp_path, "the next").past(["fake"])
    assert [sighting.campaign for sighting in record.sightings] == ["night 0", "night 99"]


def test_a_clock_that_goes_backwards_changes_no_state(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "night 1", now=1000.0).file(found(), FINGERPRINT)
    assert archive(tmp_path, "night 2", now=10.0).checked(path.name, fails=False) is State.FIXED
    assert archive(tmp_path, "night 3", now=5.0).checked(path.name, fails=True) is State.RETURNED


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("finding.json", None, "cannot read .*finding.json: No such file"),
        ("finding.json", b'{"format": "attnf', "is not the history of a finding"),
        ("finding.json", b'{"format": "something else"}', "is not the history of a finding"),
        ("case.json", None, "cannot read .*case.json"),
        ("case.json", b"", "not JSON"),
    ],
)
def test_a_torn_or_foreign_folder_is_left_out_with_one_line(
    tmp_path: Path, file: str, content: bytes | None, words: str
) -> None:
    first = archive(tmp_path, "night 1")
    damaged, _ = first.file(found(), FINGERPRINT)
    whole, _ = first.file(found(kind=Kind.RAISED), FINGERPRINT)
    (damaged / file).unlink() if content is None else (damaged / file).write_bytes(content)
    night = archive(tmp_path, "night 2")
    assert [record.name for record in night.past(["fake"])] == [whole.name]
    (line,) = night.troubles
    assert "\n" not in line
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(line)


def test_a_finding_removed_during_the_campaign_is_still_checked(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "night 1").file(found(), FINGERPRINT)
    night = archive(tmp_path, "night 2")
    forget(path)
    assert night.checked(path.name, fails=True) is State.OPEN
    assert night.checked(path.name, fails=False) is State.FIXED
    assert not path.exists()


def test_a_forgotten_finding_is_new_when_it_is_found_again(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "night 1").file(found(), FINGERPRINT)
    forget(path)
    assert list((tmp_path / "findings").iterdir()) == []
    assert archive(tmp_path, "night 2").file(found(), FINGERPRINT) == (path, State.NEW)


def test_an_unconfirmed_failure_lies_apart(tmp_path: Path) -> None:
    path = archive(tmp_path).keep_unconfirmed(found(), FINGERPRINT)
    assert path.parent == tmp_path / "unconfirmed"
    assert case_file.load(path / "case.json") == decode(100)
    assert archive(tmp_path, "night 2").past(["fake"]) == []


def test_a_full_disk_leaves_the_old_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = archive(tmp_path, "night 1").file(found(100), FINGERPRINT)

    def full(target: Path, content: bytes) -> None:
        if target.name == "report.txt":
            raise OSError(errno.ENOSPC, "No space left on device")
        durable.write_durably(target, content)

    monkeypatch.setattr(archive_module, "write_durably", full)
    with pytest.raises(OSError, match="No space left"):
        archive(tmp_path, "night 2").file(found(101), FINGERPRINT)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert case_file.load(path / "case.json") == decode(100)


def test_a_campaign_killed_at_any_moment_of_filing_leaves_a_whole_finding(tmp_path: Path) -> None:
    moments = 0
    while True:
        home = tmp_path / str(moments)
        path, _ = archive(home, "night 1").file(found(100), FINGERPRINT)
        with pytest.MonkeyPatch.context() as patch:
            done = _filed_until_killed(patch, home, moments)
        night = archive(home, "night 3")
        (record,) = night.past(["fake"])
        assert night.troubles == []
        assert record.case in (decode(100), decode(101))
        assert record.first_seen.campaign == "night 1"
        assert {entry.name for entry in path.parent.iterdir()} == {path.name}
        assert not list(path.glob(".*"))
        if done:
            break
        moments += 1
    # Each of the five files takes one move at the least, and the folder two.
    assert moments > 6


def test_a_campaign_killed_while_it_notes_a_check_leaves_no_draft(tmp_path: Path) -> None:
    path, _ = archive(tmp_path, "night 1").file(found(), FINGERPRINT)
    (path / ".draft-finding.json.123").touch()
    assert len(archive(tmp_path, "night 2").past(["fake"])) == 1
    assert not list(path.glob(".*"))


def _filed_until_killed(patch: pytest.MonkeyPatch, home: Path, moment: int) -> bool:
    """File anew, killed at the file operation with number `moment`; whether there are no more so many."""
    left = [moment]

    def dying(operation: object) -> object:
        def run(*arguments: object, **options: object) -> object:
            if not left[0]:
                raise Killed
            left[0] -= 1
            assert callable(operation)
            return operation(*arguments, **options)

        return run

    second = archive(home, "night 2")
    for name in ("rename", "replace", "mkdir", "unlink"):
        patch.setattr(Path, name, dying(getattr(Path, name)))
    patch.setattr(shutil, "rmtree", dying(shutil.rmtree))
    try:
        second.file(found(101), FINGERPRINT)
    except Killed:
        return False
    return True


def test_needs_and_cause_are_kept_and_missing_from_old_findings(tmp_path: Path) -> None:
    path, _ = archive(tmp_path).file(replace(found(), needs=("sinks",), cause="another"), FINGERPRINT)
    (record,) = archive(tmp_path, "night 2").past(["fake"])
    assert (record.needs, record.cause) == (("sinks",), "another")
    history = json.loads((path / "finding.json").read_text())
    del history["needs"], history["cause"]
    (path / "finding.json").write_text(json.dumps(history))
    (record,) = archive(tmp_path, "night 2").past(["fake"])
    assert (record.needs, record.cause) == ((), "")


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


def test_a_finding_seen_once_is_not_run_again_by_later_campaigns(tmp_path: Path) -> None:
    path, _ = archive(tmp_path).file(replace(found(), recurrence=ONCE), FINGERPRINT)
    assert read_record(path).recurrence == ONCE
    assert archive(tmp_path, "night 2").past(["fake"]) == []


def test_a_flaky_finding_is_run_again(tmp_path: Path) -> None:
    archive(tmp_path).file(replace(found(), recurrence=AFTER_TWO, history=BEFORE), FINGERPRINT)
    (record,) = archive(tmp_path, "night 2").past(["fake"])
    assert record.recurrence == AFTER_TWO
