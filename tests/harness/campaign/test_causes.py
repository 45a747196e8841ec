"""A campaign groups its findings by cause, and finds one cause behind another."""

from collections.abc import Sequence
from pathlib import Path

from fake_campaign import begin, plan
from fake_causes import Fault, FaultyJudge, featured_cases
from fake_search import FakeJobs

from attnfuzz.harness.campaign.events import Event
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.ledger import Entry, Ledger
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.case import Mode


def events_of(out: Path, *faults: Fault, ledger: Ledger | None = None, campaign: str = "1") -> list[Event]:
    jobs = FakeJobs(FaultyJudge(*faults), strategy=featured_cases())  # type: ignore[arg-type]
    asked = plan(out, examples=1500)
    return list(begin(asked, jobs, ledger=ledger, campaign=campaign).events())


def needs_of_causes(events: Sequence[Event]) -> list[tuple[str, ...]]:
    return sorted(cause.needs for cause in Standing.of(events).causes)


def test_kinds_and_modes_of_one_fault_are_one_cause(tmp_path: Path) -> None:
    kinds = (Kind.UNWRITTEN, Kind.NOT_FINITE)
    standing = Standing.of(events_of(tmp_path, Fault(needs=("sinks",), kinds=kinds)))
    (cause,) = standing.causes
    assert cause.needs == ("sinks",)
    assert {finding.fingerprint.mode for finding in cause.findings} == {"decode", "extend"}
    assert {finding.cause for finding in cause.findings} == {"", cause.name}


def test_two_faults_of_one_kind_stay_apart(tmp_path: Path) -> None:
    faults = Fault(needs=("sinks",), modes=(Mode.DECODE,)), Fault(needs=("soft cap",), modes=(Mode.EXTEND,))
    assert needs_of_causes(events_of(tmp_path, *faults)) == [("sinks",), ("soft cap",)]


def test_a_fault_of_all_cases_takes_no_other_for_its_own(tmp_path: Path) -> None:
    faults = Fault(modes=(Mode.DECODE,)), Fault(needs=("sinks",), modes=(Mode.EXTEND,))
    assert needs_of_causes(events_of(tmp_path, *faults)) == [(), ("sinks",)]


def test_a_fault_of_all_cases_is_one_cause_in_all_modes(tmp_path: Path) -> None:
    assert needs_of_causes(events_of(tmp_path, Fault())) == [()]


def test_the_ledger_knows_the_symptoms_of_a_cause_that_it_knows(tmp_path: Path) -> None:
    fault = Fault(needs=("sinks",))
    (first, *_) = Standing.of(events_of(tmp_path / "before", fault)).filed
    ledger = Ledger([Entry(backend="fake", finding=first.name, reason="known")])
    (cause,) = Standing.of(events_of(tmp_path / "after", fault, ledger=ledger)).causes
    assert len(cause.findings) > 1
    assert cause.known == "known"


def test_causes_are_known_on_the_next_night(tmp_path: Path) -> None:
    fault = Fault(needs=("sinks",))
    (before,) = Standing.of(events_of(tmp_path, fault)).causes
    (after,) = Standing.of(events_of(tmp_path, fault, campaign="2")).causes
    assert {each.name for each in after.findings} == {each.name for each in before.findings}
