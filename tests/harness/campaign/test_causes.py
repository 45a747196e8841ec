"""A campaign groups its findings by cause, and finds one cause behind another."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_archive import archive
from fake_campaign import begin, logged, of, plan
from fake_causes import MODES, Fault, FaultyJudge, featured, featured_cases
from fake_search import FakeJobs
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace
from repetition import examples

from attnfuzz.harness.campaign import schedule
from attnfuzz.harness.campaign.causes import Cause, causes_of
from attnfuzz.harness.campaign.comparisons import Comparisons
from attnfuzz.harness.campaign.events import CausesMerged, Event, FindingFiled, SliceFinished
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.search.messages import SliceKind
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.case import Case, KvView, Mode, QueryView, Views

pytestmark = pytest.mark.slow
"""Causes are compared case by case."""

SEED_OF_TWO_MODES = 2
"""With it, two jobs that begin at the same time meet a fault in two modes first."""


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice for each of two jobs."""
    monkeypatch.setattr(schedule, "EXAMPLES_PER_SLICE", 75)


def events_of(
    out: Path,
    *faults: Fault,
    strategy: SearchStrategy[Case] | None = None,
    ledger: Ledger | None = None,
    campaign: str = "1",
    jobs: int = 1,
    seed: int = 1,
) -> list[Event]:
    strategy = featured_cases() if strategy is None else strategy
    fakes = FakeJobs(FaultyJudge(*faults), jobs, strategy=strategy)
    asked = plan(out, examples=150, jobs=jobs, seed=seed)
    return list(begin(asked, fakes, ledger=ledger, campaign=campaign).events())


def lone_comparisons(events: Sequence[Event], *, jobs: int = 1) -> Comparisons:
    knowledge = Knowledge()
    for event in logged(events):
        knowledge(event)
    return Comparisons(knowledge, seed=1, jobs=jobs)


def needs_of_causes(events: Sequence[Event]) -> list[tuple[str, ...]]:
    return sorted(cause.needs for cause in Standing.of(events).causes)


def test_kinds_and_modes_of_one_fault_are_one_cause(tmp_path: Path) -> None:
    kinds = (Kind.UNWRITTEN, Kind.NOT_FINITE)
    standing = Standing.of(events_of(tmp_path, Fault(needs=("sinks",), kinds=kinds)))
    (cause,) = standing.causes
    assert cause.needs == ("sinks",)
    assert {finding.fingerprint.mode for finding in cause.findings} == {"decode", "extend"}
    assert {finding.cause for finding in cause.findings} == {"", cause.name}


def test_the_finding_that_others_are_filed_under_represents_its_cause_in_any_order(tmp_path: Path) -> None:
    findings = Standing.of(
        events_of(tmp_path, Fault(needs=("sinks",), kinds=(Kind.UNWRITTEN, Kind.NOT_FINITE)))
    ).findings
    assert len(findings) > 1
    (cause,), (backwards,) = causes_of(findings, {}), causes_of(findings[::-1], {})
    assert cause.name == backwards.name == findings[0].name


def test_two_faults_of_one_kind_stay_apart(tmp_path: Path) -> None:
    faults = Fault(needs=("sinks",), modes=(Mode.DECODE,)), Fault(needs=("soft cap",), modes=(Mode.EXTEND,))
    assert needs_of_causes(events_of(tmp_path, *faults)) == [("sinks",), ("soft cap",)]


def test_a_fault_that_needs_more_than_a_known_one_is_none_of_its_symptoms(tmp_path: Path) -> None:
    faults = Fault(needs=("sinks",), modes=(Mode.DECODE,)), Fault(needs=("sinks", "soft cap"), modes=(Mode.EXTEND,))
    assert needs_of_causes(events_of(tmp_path, *faults)) == [("sinks",), ("sinks", "soft cap")]


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


def test_causes_are_known_to_the_next_campaign(tmp_path: Path) -> None:
    fault = Fault(needs=("sinks",))
    (before,) = Standing.of(events_of(tmp_path, fault)).causes
    (after,) = Standing.of(events_of(tmp_path, fault, campaign="2")).causes
    assert {each.name for each in after.findings} == {each.name for each in before.findings}


def test_a_second_fault_of_the_same_kind_kernel_and_mode_is_found(tmp_path: Path) -> None:
    faults = Fault(needs=("sinks",), modes=(Mode.DECODE,)), Fault(needs=("soft cap",), modes=(Mode.DECODE,))
    events = events_of(tmp_path, *faults)
    assert needs_of_causes(events) == [("sinks",), ("soft cap",)]
    assert len({finding.fingerprint for finding in of(FindingFiled, events)}) == 1


def test_a_second_fault_that_shows_with_the_first_alone_is_found(tmp_path: Path) -> None:
    """No drawn case has a soft cap without sinks."""
    soft_caps = st.one_of(st.just(0.0), st.integers(10, 500).map(float))
    strategy = st.builds(featured, mode=st.just(Mode.DECODE), sinks=st.just(True), soft_cap=soft_caps)
    faults = Fault(needs=("sinks",)), Fault(needs=("soft cap",))
    assert needs_of_causes(events_of(tmp_path, *faults, strategy=strategy)) == [("sinks",), ("soft cap",)]


def test_findings_with_the_same_traits_and_other_needs_have_other_names(tmp_path: Path) -> None:
    """Strides of queries and of the KV cache are both views to a finding's name."""
    views = st.builds(
        lambda query, kv: replace(featured(mode=Mode.DECODE), views=Views(query=query, kv=kv)),
        st.sampled_from(QueryView),
        st.sampled_from(KvView),
    )
    events = events_of(tmp_path, Fault(needs=("query view",)), Fault(needs=("KV view",)), strategy=views)
    assert needs_of_causes(events) == [("KV view",), ("query view",)]
    assert len({finding.path for finding in of(FindingFiled, events)}) == 2


@pytest.mark.slow
@examples(300, 1500)
def test_searching_behind_known_failures_costs_a_tenth_of_the_search_at_most(tmp_path: Path, count: int) -> None:
    judge = FaultyJudge(Fault(needs=("sinks",)))
    failing = st.builds(
        featured, mode=st.sampled_from(MODES), sinks=st.just(True), soft_cap=st.sampled_from((0.0, 30.0))
    )
    events = list(begin(plan(tmp_path, examples=count), FakeJobs(judge, strategy=failing)).events())
    last = of(SliceFinished, events)[-1]
    assert last.examples < last.cases <= 1.1 * last.examples + 1


@pytest.mark.draws
def test_jobs_that_file_one_cause_at_the_same_time_have_it_merged(tmp_path: Path) -> None:
    events = events_of(tmp_path, Fault(needs=("sinks",)), jobs=2, seed=SEED_OF_TWO_MODES)
    assert needs_of_causes(events) == [("sinks",)]
    merged = of(CausesMerged, events)
    assert merged
    causes = {each.name: each.cause for each in archive(tmp_path, "2").past(["fake"])}
    assert all(causes[each.name] == each.cause for each in merged)


def test_causes_that_differ_are_compared_once_also_after_a_kill(tmp_path: Path) -> None:
    faults = Fault(needs=("sinks",), modes=(Mode.DECODE,)), Fault(needs=("sinks", "soft cap"), modes=(Mode.EXTEND,))
    events = events_of(tmp_path, *faults)
    assert needs_of_causes(events) == [("sinks",), ("sinks", "soft cap")]
    assert [each.kind for each in of(SliceFinished, events)].count(SliceKind.COMPARED) >= 1
    assert lone_comparisons(events).next_slice(None, ()) is None
    before = [each for each in events if not (isinstance(each, SliceFinished) and each.kind is SliceKind.COMPARED)]
    assert lone_comparisons(before).next_slice(None, ()) is not None


def test_each_job_has_a_share_of_its_time_for_comparing(tmp_path: Path) -> None:
    faults = Fault(needs=("sinks",), modes=(Mode.DECODE,)), Fault(needs=("sinks", "soft cap"), modes=(Mode.EXTEND,))
    events = events_of(tmp_path, *faults)
    # As if they had been compared with other causes.
    long = [
        replace(each, seed=each.seed + 1, seconds=30.0)
        for each in of(SliceFinished, events)
        if each.kind is SliceKind.COMPARED
    ]
    assert lone_comparisons([*of(FindingFiled, events), *long]).next_slice(60.0, ()) is None
    assert lone_comparisons([*of(FindingFiled, events), *long], jobs=2).next_slice(60.0, ()) is not None


@pytest.mark.draws
def test_a_merged_cause_is_known_if_the_ledger_knows_the_explaining_one(tmp_path: Path) -> None:
    events = events_of(tmp_path, Fault(needs=("sinks",)), jobs=2, seed=SEED_OF_TWO_MODES)
    merged = of(CausesMerged, events)[0]
    again = [replace(each, known="why") if each is merged else each for each in events]
    assert all(finding.known == "why" for finding in Standing.of(again).findings if finding.name == merged.name)


def test_causes_of_one_kind_that_need_the_same_clues_share_a_heading(tmp_path: Path) -> None:
    findings = Standing.of(events_of(tmp_path, Fault(needs=("sinks",)), Fault(needs=("soft cap",)))).filed
    sinks, cap = (next(each for each in findings if each.needs == (needs,)) for needs in ("sinks", "soft cap"))
    nan = replace(sinks.fingerprint, kind=Kind.NOT_FINITE, kernel="other")
    alike = replace(sinks, name="alike", fingerprint=nan)
    fault = replace(sinks, name="fault", fingerprint=replace(nan, kind=Kind.ILLEGAL_ACCESS))
    elsewhere = replace(sinks, name="elsewhere", case=sinks.case.having(backend="another"))
    unknown = replace(sinks, name="unknown", ablated=False)
    first, *others = (Cause((each,)).heading for each in (sinks, alike, cap, fault, elsewhere, unknown))
    assert [first == each for each in others] == [True, False, False, False, False]
