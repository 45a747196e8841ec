"""What campaigns make of failures that come and go: events, files, and later nights."""

from pathlib import Path

import pytest
from fake_campaign import begin, logged, of, plan
from fake_search import Counting, FakeJobs, observed

from attnfuzz.harness.campaign.events import FindingChecked, FindingFiled, Trouble, UnconfirmedKept
from attnfuzz.harness.findings.record import read_record
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.verdict.failures import Kind

FAULT = observed(Kind.ILLEGAL_ACCESS, "query")
UNWRITTEN = observed(Kind.UNWRITTEN)


def test_a_death_that_does_not_come_back_is_filed_as_seen_once(tmp_path: Path) -> None:
    events = list(begin(plan(tmp_path), FakeJobs(Counting(FAULT, 1))).events())
    (found,) = of(FindingFiled, events)
    assert found.recurrence is not None
    assert found.recurrence.seen_once
    assert found.report.startswith("Seen once: it did not fail again. 0 of ")
    assert not of(UnconfirmedKept, events)
    assert read_record(Path(found.path)).recurrence == found.recurrence
    (read,) = of(FindingFiled, logged(events))
    assert read == found


def test_an_unconfirmed_failure_is_filed_with_the_attempts_to_repeat_it(tmp_path: Path) -> None:
    (kept,) = of(UnconfirmedKept, begin(plan(tmp_path), FakeJobs(Counting(UNWRITTEN, 1))).events())
    report = (Path(kept.path) / "report.txt").read_text()
    assert "it did not fail again in a fresh worker. " in report
    assert "runs failed, repeated in one worker" in report
    recurrence = read_record(Path(kept.path)).recurrence
    assert recurrence is not None, "a replay repeats it"
    assert recurrence.seen_once


@pytest.mark.parametrize(("every", "state"), [(17, State.OPEN), (0, State.FIXED)])
def test_later_campaigns_repeat_a_flaky_finding(tmp_path: Path, every: int, state: State) -> None:
    (found,) = of(FindingFiled, begin(plan(tmp_path), FakeJobs(Counting(UNWRITTEN, 1, every=17))).events())
    assert found.recurrence is not None
    later = FakeJobs(Counting(UNWRITTEN, every=every))
    events = list(begin(plan(tmp_path), later, campaign="night 2").events())
    (checked,) = of(FindingChecked, events)
    assert checked.state is state
    assert checked.runs == (17 if state is State.OPEN else found.recurrence.runs_to_show)
    assert not of(Trouble, events)
