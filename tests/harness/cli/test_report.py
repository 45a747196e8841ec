"""`attnfuzz report` and `attnfuzz compare`: of homes, campaigns and logs, and of files that are none of these."""

import errno
import os
from pathlib import Path

import pytest
from campaign_events import MISMATCH, checked, filed, finished, started, without_sinks
from command_line import Attnfuzz
from fake_archive import FINGERPRINT, archive, found
from fake_search import decode
from msgspec.structs import replace
from refusals import refused

from attnfuzz.harness.campaign.events import Event
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import EventLog, read_log
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.report.files import STEP_SUMMARY, write_reports

CASE = replace(decode(5), backend="torch_sdpa")
FIRST, SECOND = "20260501-043000", "20260502-043000"


def campaign(home: Home, name: str, *events: Event, ended: bool = True, **environment: str) -> Path:
    """A campaign in `home` with these events; the path of its log."""
    begun = started("torch_sdpa", campaign=name, **environment)
    with EventLog(home.log(name)) as log:
        for event in (begun, *events, *([finished()] if ended else [])):
            log(event)
    return home.log(name)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Two nights: a finding, and on the second it is fixed."""
    home = Home(tmp_path / "out")
    campaign(home, FIRST, filed(CASE, "the-finding"), torch="2.8")
    campaign(home, SECOND, checked(CASE, State.FIXED, "the-finding"), torch="2.9")
    return home


@pytest.mark.usefixtures("home")
def test_the_last_campaign_of_a_home_is_reported_beside_its_log(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("report", "--home", "out")
    assert ran.code == 0, ran.err
    first, *rest = ran.out.splitlines()
    assert first == "No findings, 1 fixed, over 1:00:00."
    folder = Path("out/campaigns") / SECOND
    assert rest == [f"Wrote {folder / name}." for name in ("report.html", "junit.xml", "summary.md")]
    assert "Since 20260501" in (folder / "summary.md").read_text()
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (folder / "junit.xml").read_bytes().startswith(b"<?xml")


def test_an_earlier_campaign_can_be_named_by_its_id_its_folder_or_its_log(attnfuzz: Attnfuzz, home: Home) -> None:
    log = home.log(FIRST)
    outputs = {
        attnfuzz("report", "--campaign", campaign, *args).out.splitlines()[0]
        for campaign, *args in ((FIRST, "--home", "out"), (str(log.parent),), (str(log),))
    }
    assert outputs == {"1 new finding over 1:00:00."}
    assert (log.parent / "issues/computes-a-wrong-output-the-finding.md").exists()


def test_only_requested_reports_are_written(attnfuzz: Attnfuzz, home: Home) -> None:
    log = home.log(FIRST)
    ran = attnfuzz(
        "report", "--campaign", str(log), "--junit", "j.xml", "--markdown", "m.md", "--issue", "the-find", "issue.md"
    )
    assert ran.out.splitlines()[1:] == ["Wrote j.xml.", "Wrote m.md.", "Wrote issue.md."]
    assert Path("issue.md").read_text().startswith("# computes a wrong output (torch\\_sdpa, decode)")
    assert [path.name for path in log.parent.iterdir()] == [log.name]


def test_a_log_that_was_taken_out_of_its_home_is_enough(attnfuzz: Attnfuzz, home: Home, tmp_path: Path) -> None:
    (tmp_path / "events.ndjson").write_bytes(home.log(FIRST).read_bytes())
    assert attnfuzz("report", "--campaign", "events.ndjson", "--html", "r.html").code == 0
    assert "the-finding" in Path("r.html").read_text()


def test_findings_from_after_a_campaign_are_not_listed_as_not_run(attnfuzz: Attnfuzz, home: Home) -> None:
    archive(home.path, SECOND).file(found(), FINGERPRINT)
    ran = attnfuzz("compare", str(home.log(FIRST)), "out")
    assert f"{SECOND} did not run" not in ran.out
    assert f"{FIRST} did not run" not in ran.out
    campaign(home, "20260503-043000")
    third = attnfuzz("compare", str(home.log(FIRST)), "out")
    assert "campaigns/20260503-043000 did not run 1 open finding of its home" in third.out


def test_two_campaigns_are_compared(attnfuzz: Attnfuzz, home: Home) -> None:
    ran = attnfuzz("compare", str(home.log(FIRST)), "out", "--markdown", "m.md")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0] == f"{FIRST} → {SECOND}"
    assert lines[1] == "Fixed: computes a wrong output (torch_sdpa, decode)"
    assert lines[2] == "  attnfuzz replay out/findings/the-finding"
    assert "torch: 2.8 → 2.9" in lines
    assert Path("m.md").read_text().startswith("# attnfuzz: 20260501")


def test_a_campaign_that_runs_still_or_was_killed_says_so(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    campaign(Home(tmp_path / "out"), FIRST, filed(CASE), ended=False)
    ran = attnfuzz("report", "--home", "out")
    assert ran.code == 0
    assert ran.out.startswith("Not finished: 1 new finding over 60 s so far.")


def test_a_torn_last_line_is_left_out(attnfuzz: Attnfuzz, home: Home) -> None:
    with home.log(SECOND).open("ab") as log:
        log.write(b'{"event": "Find')
    assert attnfuzz("report", "--home", "out").code == 0
    assert home.log(SECOND).read_bytes().endswith(b'{"event": "Find')


def test_a_damaged_log_does_not_prevent_the_next_report(attnfuzz: Attnfuzz, home: Home) -> None:
    home.log(FIRST).write_text("nonsense\n")
    assert attnfuzz("report", "--home", "out").code == 0
    assert "Since" not in (home.folder(SECOND) / "summary.md").read_text()


def test_reading_a_foreign_log_runs_no_code_and_writes_in_one_place(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("open('imported', 'w')\n")
    case = replace(CASE, backend="theirs.py:MINE")
    log = tmp_path / "out/campaigns" / FIRST / "events.ndjson"
    with EventLog(log) as write:
        for event in (started("theirs.py:MINE", campaign="../../x"), filed(case, "../../../escaped"), finished()):
            write(event)
    assert attnfuzz("report", "--home", "out").code == 0
    assert attnfuzz("compare", "out", str(log), "--markdown", "m.md").code == 0
    assert not Path("imported").exists()
    assert not list(tmp_path.rglob("escaped*"))


def test_terminal_escapes_are_not_printed(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    hostile = replace(MISMATCH, place="\x1b]0;title\x07", mode="\x1b[2J")
    log = campaign(Home(tmp_path / "out"), FIRST, filed(CASE, "x\x1b[31m", observation=hostile), torch="\x1b[0m")
    compared, refused_issue = (
        attnfuzz("compare", "out", str(log)),
        attnfuzz("report", "--home", "out", "--issue", "other", "i.md"),
    )
    assert "\ufffd" in compared.out
    for ran in (compared, refused_issue):
        assert "\x1b" not in ran.out + ran.err


def test_a_log_with_a_case_that_can_not_be_is_damaged(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    campaign(Home(tmp_path / "out"), FIRST, filed(replace(CASE, geometry=replace(CASE.geometry, page_size=0))))
    refused(attnfuzz("report", "--home", "out"), "line 2", "page_size", "damaged")


def test_an_empty_folder_is_no_campaign(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    refused(attnfuzz("report", "--home", "empty"), "empty holds no campaign", "name a home")


def test_a_foreign_folder_or_file_is_no_campaign(attnfuzz: Attnfuzz, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/data.txt").write_text("hello\n")
    refused(attnfuzz("report", "--home", "foreign"), "foreign holds no campaign")
    refused(attnfuzz("report", "--campaign", "foreign/data.txt"), "not an event log of attnfuzz")
    refused(attnfuzz("report", "--home", "foreign", "--campaign", FIRST), "no campaigns/")


@pytest.mark.usefixtures("home")
def test_a_missing_home_or_campaign_is_named(attnfuzz: Attnfuzz) -> None:
    refused(attnfuzz("report", "--home", "nothing"), "nothing does not exist")
    refused(attnfuzz("report", "--home", "out", "--campaign", "monday"), "'monday'", SECOND)
    refused(attnfuzz("compare", "out", "nothing"), "nothing does not exist")


@pytest.mark.usefixtures("home")
def test_a_log_that_may_not_be_read_is_named(attnfuzz: Attnfuzz, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, _most: int) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("attnfuzz.harness.campaign.log.read_bytes", denied)
    refused(attnfuzz("report", "--home", "out"), "Permission denied", "events.ndjson", "permissions")


def test_a_folder_that_can_not_be_written_to_is_named(attnfuzz: Attnfuzz, home: Home) -> None:
    (home.folder(FIRST) / "issues").write_text("a file")
    refused(attnfuzz("report", "--home", "out", "--campaign", FIRST), "issues")


@pytest.mark.usefixtures("home")
def test_an_unknown_finding_lists_the_known_ones(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("report", "--home", "out", "--campaign", FIRST, "--issue", "other", "i.md")
    refused(ran, "no finding with 'other' in its name", "the-finding")


def test_a_campaign_leaves_its_reports_and_the_summary_of_the_runner(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    summary = tmp_path / "step.md"
    summary.write_text("what another command said\n")
    monkeypatch.setenv(STEP_SUMMARY, str(summary))
    script = home.findings / "the-finding/repro.py"
    script.parent.mkdir(parents=True)
    script.write_text("print('it fails')\n")
    written = write_reports(home, FIRST, Standing.of(read_log(home.log(FIRST))))
    assert written.html.read_text().startswith("<!DOCTYPE html>")
    assert summary.read_bytes() == b"what another command said\n" + written.markdown.read_bytes()
    assert [path.name for path in written.issues] == ["computes-a-wrong-output-the-finding.md"]
    assert "print('it fails')" in written.issues[0].read_text()


def test_a_cause_has_one_issue(attnfuzz: Attnfuzz, home: Home) -> None:
    log = campaign(home, "20260503", *without_sinks(CASE, needs=("sinks", "window")))
    (issue,) = write_reports(home, "20260503", Standing.of(read_log(log))).issues
    assert issue.name == "computes-a-wrong-output-with-sinks-and-window-sinks.md"
    assert "The case passes without sinks, or without window." in issue.read_text()
    assert attnfuzz("report", "--campaign", str(log), "--issue", "sinks-3", "i.md").code == 0
    assert Path("i.md").read_text() == issue.read_text()


def test_known_and_open_findings_get_no_issue(home: Home) -> None:
    campaign(home, "20260503", checked(CASE, State.OPEN), filed(CASE, "known", known="upstream"))
    assert write_reports(home, "20260503", Standing.of(read_log(home.log("20260503")))).issues == ()
