"""Causes that were filed as they were drawn are minimized in the last part of a campaign."""

from pathlib import Path

import pytest
from campaign_events import filed
from fake_archive import archive
from fake_campaign import begin, logged, of, plan
from fake_causes import MODES, Fault, FaultyJudge, featured, featured_cases
from fake_search import FakeJobs, decode, of_steps
from hypothesis import strategies as st
from msgspec.structs import replace

from attnfuzz.harness.campaign import minimizing, shrinking
from attnfuzz.harness.campaign.events import Event, FindingChecked, FindingFiled, FindingMinimized, SliceStarted
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.campaign.minimizing import LEAST_SECONDS, MOST, SHARE, Minimizing
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.messages import SliceKind
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.recurrence import Recurrence, Rerun
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case, Mode


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A campaign whose failures have had their share of the time before the first one is found."""
    monkeypatch.setattr(shrinking, "GRANTED_SECONDS", 0.0)


def events_of(out: Path, *faults: Fault, campaign: str = "1") -> list[Event]:
    jobs = FakeJobs(FaultyJudge(*faults), strategy=featured_cases())
    return list(begin(plan(out), jobs, campaign=campaign).events())


@pytest.mark.usefixtures("busy")
def test_a_finding_filed_as_drawn_gets_its_needs_before_the_end(tmp_path: Path) -> None:
    events = events_of(tmp_path, Fault(needs=("sinks",), modes=(Mode.DECODE,)))
    drawn, minimal = of(FindingFiled, events)[0], of(FindingMinimized, events)[0].finding
    assert not drawn.ablated
    assert drawn.at == minimal.at
    assert len(of_steps(drawn.case).steps[0].requests) > len(of_steps(minimal.case).steps[0].requests)
    (cause,) = Standing.of(events).causes
    assert cause.findings == (minimal,)
    assert (minimal.ablated, minimal.needs) == (True, ("sinks",))


@pytest.mark.usefixtures("busy")
def test_a_minimized_finding_takes_the_place_of_the_one_that_was_drawn(tmp_path: Path) -> None:
    events = events_of(tmp_path, Fault(needs=("sinks", "soft cap"), modes=(Mode.DECODE,)))
    drawn, (change,) = of(FindingFiled, events)[0], of(FindingMinimized, events)
    folders = {path.name for path in (tmp_path / "findings").iterdir()}
    assert folders == {change.finding.name}
    assert case_file.load(Path(change.finding.path) / "first.json") == drawn.case
    (record,) = archive(tmp_path, "2").past(["fake"])
    assert (record.case, record.needs, record.ablated) == (change.finding.case, change.finding.needs, True)


@pytest.mark.usefixtures("busy")
def test_causes_that_turn_out_to_be_one_are_merged(tmp_path: Path) -> None:
    events = events_of(tmp_path, Fault(needs=("sinks",), kinds=(Kind.UNWRITTEN, Kind.LSE_MISMATCH)))
    assert len([each for each in of(FindingFiled, events) if not each.cause]) > 1
    (cause,) = Standing.of(events).causes
    assert cause.needs == ("sinks",)
    (again,) = Standing.of(events_of(tmp_path, Fault(needs=("sinks",)), campaign="2")).causes
    assert again.needs == ("sinks",)


@pytest.mark.usefixtures("busy")
def test_two_faults_that_were_drawn_alike_stay_apart(tmp_path: Path) -> None:
    faults = Fault(needs=("sinks",), modes=(Mode.DECODE,)), Fault(needs=("window",), modes=(Mode.EXTEND,))
    needs = sorted(cause.needs for cause in Standing.of(events_of(tmp_path, *faults)).causes)
    assert needs == [("sinks",), ("window",)]


@pytest.mark.usefixtures("busy")
def test_a_resumed_campaign_minimizes_nothing_twice(tmp_path: Path) -> None:
    events = events_of(tmp_path, Fault(needs=("sinks",), modes=(Mode.DECODE,)))
    begun = begun_with(*logged(events))
    assert begun.next_slice(9.0, None) is None
    assert Standing.of(logged(events)).causes == Standing.of(events).causes


def test_a_minimized_finding_of_an_earlier_campaign_is_not_run_again_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(needs=("sinks",), modes=(Mode.DECODE,))
    with monkeypatch.context() as changed:
        changed.setattr(shrinking, "GRANTED_SECONDS", 0.0)
        changed.setattr(minimizing, "GRANTED_SECONDS", 0.0)
        changed.setattr(minimizing, "SHARE", 0.0)
        events_of(tmp_path, fault)
    log = logged(events_of(tmp_path, fault, campaign="2"))
    jobs = FakeJobs(FaultyJudge(fault), strategy=featured_cases())
    again = list(begin(plan(tmp_path), jobs, campaign="2", past_events=log[:-1]).events())
    assert of(FindingMinimized, log)
    assert not of(FindingChecked, again)
    assert Standing.of([*log, *again]).findings == Standing.of(log).findings


def as_drawn(name: str, case: Case) -> FindingFiled:
    return replace(filed(case, name), ablated=False)


def begun_with(*events: Event, jobs: int = 1) -> Minimizing:
    knowledge = Knowledge()
    begun = Minimizing(knowledge, seed=1, jobs=jobs)
    for event in events:
        knowledge(event)
        begun(event)
    return begun


def names_of(begun: Minimizing, at: float = 99.0) -> str | None:
    task = begun.next_slice(at, 100.0)
    return None if task is None or task.minimized is None else task.minimized.name


def test_the_last_part_of_the_time_is_for_minimizing() -> None:
    begun = begun_with(as_drawn("one", decode(7)))
    assert begun.next_slice(100.0 * (1 - SHARE) - 1, 100.0) is None
    assert names_of(begun, 100.0 * (1 - SHARE) + 1) == "one"


def test_the_case_that_is_computed_fastest_comes_first() -> None:
    assert names_of(begun_with(as_drawn("long", decode(900, 900)), as_drawn("short", decode(7)))) == "short"


@pytest.mark.parametrize(
    "changes",
    [
        {"ablated": True},
        {"known": "in the ledger"},
        {"recurrence": Recurrence(way=Rerun.ALONE, runs=100, failed=3)},
    ],
    ids=["minimized", "known", "comes and goes"],
)
def test_causes_that_need_no_minimizing_are_left_out(changes: dict[str, object]) -> None:
    assert names_of(begun_with(replace(as_drawn("it", decode(7)), **changes))) is None


def test_each_cause_is_minimized_once() -> None:
    event = as_drawn("one", decode(7))
    task = begun_with(event).next_slice(99.0, 100.0)
    assert task is not None
    started = SliceStarted(at=99.0, job=0, backend="fake", kind=SliceKind.MINIMIZED, seed=task.seed, examples=0)
    assert names_of(begun_with(event, started)) is None
    renamed = FindingMinimized(at=99.0, name="one", finding=as_drawn("other", decode(3)))
    assert names_of(begun_with(event, renamed)) is None


def test_causes_share_the_time_that_is_left() -> None:
    events = [as_drawn(f"of {length}", decode(length)) for length in range(1, 5)]
    alone, few = begun_with(events[0]).next_slice(80.0, 100.0), begun_with(*events, jobs=2)
    task = few.next_slice(80.0, 100.0)
    assert alone is not None
    assert task is not None
    assert alone.shrink.seconds == 20.0
    assert task.shrink.seconds == 10.0
    long = begun_with(events[0]).next_slice(8000.0, 9999.0)
    assert long is not None
    assert long.shrink == MOST
    late = few.next_slice(99.0, 100.0)
    assert late is not None
    assert late.shrink.seconds == LEAST_SECONDS


def test_without_a_time_limit_minimizing_has_a_share_of_the_time_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minimizing, "GRANTED_SECONDS", 0.0)
    begun = begun_with(as_drawn("one", decode(7)))
    assert begun.next_slice(0.0, None) is None
    task = begun.next_slice(100.0, None)
    assert task is not None
    assert task.shrink.seconds == 100.0 * SHARE


def test_an_open_finding_of_an_earlier_campaign_keeps_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(needs=("sinks",), modes=(Mode.DECODE,))
    with monkeypatch.context() as changed:
        changed.setattr(shrinking, "GRANTED_SECONDS", 0.0)
        changed.setattr(minimizing, "GRANTED_SECONDS", 0.0)
        changed.setattr(minimizing, "SHARE", 0.0)
        (before,) = Standing.of(events_of(tmp_path, fault)).findings
    assert not before.ablated
    (after,) = Standing.of(events_of(tmp_path, fault, campaign="2")).findings
    assert after.ablated
    assert after.state is State.OPEN
    assert after.name != before.name or after.case != before.case


def test_other_failures_of_a_case_that_is_minimized_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that shows without the feature alone, which every drawn case has."""
    monkeypatch.setattr(shrinking, "GRANTED_SECONDS", 0.0)

    class Judge(FaultyJudge):
        def verdict(self, case: Case) -> Verdict:
            plain = FaultyJudge(Fault(kinds=(Kind.NOT_FINITE,)))
            return super().verdict(case) if case.geometry.sinks else plain.verdict(case)

    strategy = st.builds(featured, mode=st.sampled_from(MODES), sinks=st.just(True))
    events = list(begin(plan(tmp_path), FakeJobs(Judge(Fault(needs=("sinks",))), strategy=strategy)).events())
    assert Kind.NOT_FINITE in {each.fingerprint.kind for each in of(FindingFiled, events)}
