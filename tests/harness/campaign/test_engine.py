"""A campaign's main process: budgets, filing, and the events that it tells."""

import dataclasses
import threading
from pathlib import Path

import pytest
from fake_campaign import FakeCorpus, ScriptedJobs, begin, logged, of, plan
from fake_search import FakeJobs, FakeJudge, RejectingJudge, decode, fails_on_long, kv_lens, observed
from msgspec.structs import replace

from attnfuzz.harness.campaign import engine, schedule, under_way
from attnfuzz.harness.campaign.closing import NO_LONGER
from attnfuzz.harness.campaign.events import (
    AlreadyFiled,
    CampaignFinished,
    CampaignStarted,
    CaseAwaited,
    CaseKept,
    CoverageGrew,
    Event,
    FindingChecked,
    FindingFiled,
    GapSeen,
    JobFailed,
    JobReady,
    JobRestarted,
    LedgerRemark,
    Progress,
    SliceFinished,
    SliceStarted,
    Trouble,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.knowledge import ATTEMPTS
from attnfuzz.harness.campaign.plan import Limits, Plan
from attnfuzz.harness.campaign.resume import Past, opening, plan_again
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.corpus import Why
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.search.messages import (
    DriverAwaited,
    Interesting,
    MaySettle,
    Ready,
    Rechecked,
    SliceDone,
    SliceKind,
    Tally,
)
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference import case_file
from attnfuzz.reference.case_file import case_id

SEVERAL_SLICES = pytest.mark.usefixtures("small_slices")
"""Searches in several slices."""

DONE = SliceDone(tally=Tally(searched=250, cases=250, deaths=0), stopped_early=False, seconds=1.0, unsupported={})


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of a third of what `plan` asks for."""
    monkeypatch.setattr(schedule, "EXAMPLES_PER_SLICE", 50)


def run(jobs: FakeJobs, asked: Plan) -> list[Event]:
    return list(begin(asked, jobs).events())


def passes(_: list[int]) -> tuple[Observation, ...]:
    return ()


@pytest.mark.slow
@SEVERAL_SLICES
def test_a_clean_campaign_uses_its_budget_and_files_nothing(tmp_path: Path) -> None:
    judge = FakeJudge(passes)
    events = run(FakeJobs(judge), plan(tmp_path))
    assert isinstance(events[0], CampaignStarted)
    assert isinstance(events[-1], CampaignFinished)
    assert not events[-1].interrupted
    assert sum(event.examples for event in of(SliceFinished, events)) == 150 == len(judge.judged)
    assert sum(event.tally.searched for event in of(Progress, events)) == 150
    assert sum(event.tally.cases for event in of(Progress, events)) == 150
    assert not list(tmp_path.iterdir())


def test_a_backend_that_supports_none_of_its_cases_is_named(tmp_path: Path) -> None:
    events = run(FakeJobs(RejectingJudge()), plan(tmp_path, examples=150))
    assert [event.text for event in of(Trouble, events)] == ["fake supports none of 150 cases: no decode"]
    standing = Standing.of(logged(events))
    assert standing.idle
    assert not standing.clean


@SEVERAL_SLICES
def test_every_slice_has_its_own_seed(tmp_path: Path) -> None:
    events = run(FakeJobs(FakeJudge(passes)), plan(tmp_path))
    seeds = [event.seed for event in of(SliceFinished, events)]
    assert len(set(seeds)) == len(seeds) == 3


@pytest.mark.slow
@SEVERAL_SLICES
def test_a_campaign_with_the_same_seed_draws_the_same_cases(tmp_path: Path) -> None:
    judges = [FakeJudge(passes) for _ in range(3)]
    for number, (judge, seed) in enumerate(zip(judges, (1, 1, 2), strict=True)):
        run(FakeJobs(judge), plan(tmp_path / str(number), seed=seed))
    first, second, other = (judge.judged for judge in judges)
    assert first == second != other


@SEVERAL_SLICES
def test_several_jobs_search_no_more_than_was_asked(tmp_path: Path) -> None:
    judge = FakeJudge(passes)
    run(FakeJobs(judge, count=3), plan(tmp_path, jobs=3))
    assert len(judge.judged) == 150


@pytest.mark.slow
@SEVERAL_SLICES
def test_a_bug_is_filed_once_and_the_rest_of_the_budget_is_still_used(tmp_path: Path) -> None:
    events = run(FakeJobs(FakeJudge(fails_on_long)), plan(tmp_path))
    (filed,) = of(FindingFiled, events)
    assert kv_lens(filed.case) == [100]
    assert filed.report == "rendered [100]"
    assert filed.state is State.NEW
    assert case_file.load(Path(filed.path) / "case.json") == filed.case
    assert (Path(filed.path) / "repro.py").read_text() == "print([100])"
    assert sum(event.examples for event in of(SliceFinished, events)) == 150


@pytest.mark.slow
@SEVERAL_SLICES
def test_several_jobs_that_meet_the_same_bug_file_it_once(tmp_path: Path) -> None:
    events = run(FakeJobs(FakeJudge(fails_on_long), count=3), plan(tmp_path, jobs=3))
    assert len(of(FindingFiled, events)) == 1
    assert not of(UnconfirmedKept, events)


@pytest.mark.slow
@SEVERAL_SLICES
def test_two_fingerprints_that_shrink_to_the_same_bug_are_one_finding(tmp_path: Path) -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        return (observed(place="key" if max(lengths) % 2 else "value"),) if max(lengths) >= 100 else ()

    events = run(FakeJobs(FakeJudge(fails)), plan(tmp_path))
    (filed,), (other,) = of(FindingFiled, events), of(AlreadyFiled, events)
    assert other.name == filed.name
    assert other.fingerprint != filed.fingerprint


@pytest.mark.slow
@SEVERAL_SLICES
def test_an_unconfirmed_failure_is_kept_apart_and_given_up_after_some_attempts(tmp_path: Path) -> None:
    judge = FakeJudge(fails_on_long, comes_back=lambda _: False)
    events = run(FakeJobs(judge), plan(tmp_path, examples=200))
    assert len(of(UnconfirmedKept, events)) == ATTEMPTS
    assert not of(FindingFiled, events)
    assert not (tmp_path / "findings").exists()
    assert (tmp_path / "unconfirmed").is_dir()


@pytest.mark.slow
@SEVERAL_SLICES
def test_gaps_are_reported_once_in_a_campaign(tmp_path: Path) -> None:
    events = run(FakeJobs(FakeJudge(lambda _: (observed(gap=True),))), plan(tmp_path))
    assert len(of(GapSeen, events)) == 1


def test_a_campaign_without_time_ends_at_once(tmp_path: Path) -> None:
    events = run(FakeJobs(FakeJudge(passes)), plan(tmp_path, examples=None, seconds=0.0))
    assert [type(event) for event in events] == [CampaignStarted, CampaignFinished]


def test_a_finding_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    asked = plan(tmp_path)
    campaign = begin(asked, FakeJobs(FakeJudge(fails_on_long)))
    (tmp_path / "findings").write_text("in the way")
    with pytest.raises(OSError, match="findings"):
        list(campaign.events())


def test_progress_of_many_tallies_is_reported_once_a_second_and_before_the_slice_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_tallies(seconds: float) -> list[Event]:
        monkeypatch.setattr(under_way, "SECONDS_PER_PROGRESS", seconds)
        script = [*[Tally(searched=50, cases=50, deaths=1, shrinking=False, margins={"T4": 0.1})] * 5, DONE]
        return list(begin(plan(tmp_path, examples=250), ScriptedJobs(script)).events())

    seldom, often = of_tallies(100.0), of_tallies(0.0)
    assert len(of(Progress, seldom)) == 2
    assert len(of(Progress, often)) == 5
    for events in (seldom, often):
        assert sum(event.tally.searched for event in of(Progress, events)) == 250
        assert sum(event.tally.deaths for event in of(Progress, events)) == 5
        assert of(Progress, events)[-1].tally.margins == {"T4": 0.1}
        assert events.index(of(Progress, events)[-1]) < events.index(of(SliceFinished, events)[0])


def test_a_claim_is_answered(tmp_path: Path) -> None:
    jobs = ScriptedJobs(
        [MaySettle(fingerprint=Fingerprint.of("fake", observed())), Tally(searched=250, cases=250), DONE]
    )
    list(begin(plan(tmp_path, examples=250), jobs).events())
    assert jobs.answers == [True]


def test_an_idle_job_gets_no_examples_that_another_one_has_searched(tmp_path: Path) -> None:
    script = [*(Tally(searched=part, cases=part, deaths=0, shrinking=False) for part in (200, 40, 10)), DONE]
    jobs = ScriptedJobs(script, count=2)
    list(begin(plan(tmp_path, examples=250, jobs=2), jobs).events())
    assert [task.examples for task in jobs.slices] == [250]


def test_pairs_are_reported_when_they_are_new_to_the_campaign_and_their_cases_kept(tmp_path: Path) -> None:
    corpus = FakeCorpus(tmp_path / "corpus")
    script = [
        Interesting(case=decode(1), pairs=(("a", "b"), ("a", "c"))),
        Interesting(case=decode(2), pairs=(("a", "b"),)),
        Interesting(case=decode(3), pairs=(("a", "b"), ("b", "c"))),
        Tally(searched=250, cases=250, deaths=0, shrinking=False),
        DONE,
    ]
    events = list(begin(plan(tmp_path, examples=250), ScriptedJobs(script), corpus=corpus).events())
    assert [event.pairs for event in of(CoverageGrew, events)] == [(("a", "b"), ("a", "c")), (("b", "c"),)]
    assert [event.case_id for event in of(CaseKept, events)] == [case_id(decode(1)), case_id(decode(3))]
    assert [why for _, why in corpus.asked] == [Why.COVERAGE, Why.COVERAGE]


def test_a_case_is_kept_for_a_margin_that_no_job_had_before(tmp_path: Path) -> None:
    corpus = FakeCorpus(tmp_path / "corpus")
    margins = (0.5, 0.4, 0.7)
    news = [Interesting(case=decode(1), margins={"T4": margin}) for margin in margins]
    script = [*news, Tally(searched=250, cases=250, deaths=0, shrinking=False), DONE]
    list(begin(plan(tmp_path, examples=250), ScriptedJobs(script), corpus=corpus).events())
    assert [why for _, why in corpus.asked] == [Why.MARGIN, Why.MARGIN]


def test_no_job_waits_for_cases_to_be_kept(tmp_path: Path) -> None:
    news = [Interesting(case=decode(number), pairs=((str(number), "x"),)) for number in range(3)]
    tallied = Tally(searched=250, cases=250, deaths=0, shrinking=False)
    jobs = ScriptedJobs([*news, tallied, DONE, tallied, DONE])
    events = list(begin(plan(tmp_path, examples=500), jobs).events())
    sent = [type(event) for event in events if isinstance(event, SliceStarted | CaseKept)]
    assert sent == [SliceStarted, SliceStarted, CaseKept, CaseKept, CaseKept]


@SEVERAL_SLICES
def test_a_finding_goes_into_the_corpus_with_its_smallest_case(tmp_path: Path) -> None:
    corpus = FakeCorpus(tmp_path / "corpus")
    events = list(begin(plan(tmp_path), FakeJobs(FakeJudge(fails_on_long)), corpus=corpus).events())
    (filed,) = of(FindingFiled, events)
    assert corpus.asked == [(filed.case, Why.FAILURE)]


def test_kept_cases_run_first_and_no_more_than_a_fifth_of_the_budget(tmp_path: Path) -> None:
    judge = FakeJudge(passes)
    corpus = FakeCorpus(tmp_path / "corpus", [decode(length) for length in range(300, 350)])
    events = list(begin(plan(tmp_path, examples=100), FakeJobs(judge), corpus=corpus).events())
    assert judge.judged[:20] == list(corpus.cases[:20])
    assert not {*judge.judged[20:]} & {*corpus.cases}
    assert len(judge.judged) == 120
    assert [(event.index, event.examples) for event in of(SliceStarted, events)] == [(None, 20), (0, 100)]


def test_a_kept_case_that_fails_is_a_finding(tmp_path: Path) -> None:
    corpus = FakeCorpus(tmp_path / "corpus", [decode(300)])
    judge = FakeJudge(lambda lengths: (observed(),) if max(lengths) >= 201 else ())
    events = list(begin(plan(tmp_path), FakeJobs(judge), corpus=corpus).events())
    (filed,) = of(FindingFiled, events)
    assert kv_lens(filed.case) == [201]


def night(out: Path, campaign: str, judge: FakeJudge, ledger: Ledger | None = None) -> list[Event]:
    return list(begin(plan(out, examples=60), FakeJobs(judge), campaign=campaign, ledger=ledger).events())


@pytest.mark.slow
def test_a_finding_is_new_then_open_then_fixed_then_returned(tmp_path: Path) -> None:
    def broken() -> FakeJudge:
        return FakeJudge(fails_on_long)

    def mended() -> FakeJudge:
        return FakeJudge(passes)

    (new,) = of(FindingFiled, night(tmp_path, "1", broken()))
    again = night(tmp_path, "2", broken())
    (still,) = of(FindingChecked, again)
    (fixed,) = of(FindingChecked, night(tmp_path, "3", mended()))
    quiet = night(tmp_path, "4", mended())
    (returned,) = of(FindingChecked, night(tmp_path, "5", broken()))
    assert new.state is State.NEW
    assert not of(FindingFiled, again), "what is open is passed over"
    assert [event.state for event in (still, fixed, returned)] == [State.OPEN, State.FIXED, State.RETURNED]
    assert {event.name for event in (still, fixed, returned)} == {new.name}
    assert (still.runs, still.times) == (1, 1)
    assert not of(FindingChecked, quiet), "what was fixed before and passes is no news"


def test_a_past_finding_is_run_again_however_small_the_budget(tmp_path: Path) -> None:
    night(tmp_path, "1", FakeJudge(fails_on_long))
    events = list(begin(plan(tmp_path, examples=1), FakeJobs(FakeJudge(fails_on_long)), campaign="2").events())
    assert len(of(FindingChecked, events)) == 1


def test_a_known_failure_is_filed_with_its_reason_and_a_stale_entry_is_remarked_on(
    tmp_path: Path,
) -> None:
    known = Ledger([Entry(backend="fake", kind=Kind.OUTPUT_MISMATCH, reason="rounding")])
    (filed,) = of(FindingFiled, night(tmp_path, "1", FakeJudge(fails_on_long), known))
    assert filed.known == "rounding"
    (checked,) = of(FindingChecked, night(tmp_path, "2", FakeJudge(fails_on_long), known))
    assert checked.known == "rounding"
    (remark,) = of(LedgerRemark, night(tmp_path, "3", FakeJudge(passes), known))
    assert (remark.entry, remark.text) == (1, NO_LONGER)


def test_an_entry_does_not_excuse_a_known_finding_that_fails_in_another_way(tmp_path: Path) -> None:
    known = Ledger([Entry(backend="fake", kind=Kind.OUTPUT_MISMATCH, reason="rounding")])
    night(tmp_path, "1", FakeJudge(fails_on_long), known)
    crashes = FakeJudge(lambda lengths: (observed(Kind.ILLEGAL_ACCESS, "kv"),) if max(lengths) >= 100 else ())
    (checked,) = of(FindingChecked, night(tmp_path, "2", crashes, known))
    assert (checked.state, checked.observation.kind, checked.known) == (State.OPEN, Kind.ILLEGAL_ACCESS, None)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_campaign_until_a_finding_ends_when_one_is_filed(tmp_path: Path, jobs: int) -> None:
    asked = plan(tmp_path, examples=10_000, jobs=jobs, until_finding=True)
    events = run(FakeJobs(FakeJudge(fails_on_long), count=jobs), asked)
    (filed,) = of(FindingFiled, events)
    assert kv_lens(filed.case) == [100]
    assert (Path(filed.path) / "repro.py").exists(), "its script is made after it was filed"
    assert not of(SliceStarted, events[events.index(filed) :])
    assert sum(event.examples for event in of(SliceFinished, events)) < 10_000
    (finished,) = of(CampaignFinished, events)
    assert not finished.interrupted
    assert not of(Trouble, events), "what was not done is no trouble: it was not asked for"


def test_a_campaign_until_a_finding_ends_when_an_old_one_fails_again(tmp_path: Path) -> None:
    night(tmp_path, "1", FakeJudge(fails_on_long))
    asked = plan(tmp_path, until_finding=True)
    events = list(begin(asked, FakeJobs(FakeJudge(fails_on_long)), campaign="2").events())
    assert [event.state for event in of(FindingChecked, events)] == [State.OPEN]
    assert not [event for event in of(SliceStarted, events) if event.kind is SliceKind.DRAWN]


@SEVERAL_SLICES
def test_a_campaign_until_a_finding_continues_after_known_failures(tmp_path: Path) -> None:
    known = Ledger([Entry(backend="fake", kind=Kind.OUTPUT_MISMATCH, reason="rounding")])
    jobs = FakeJobs(FakeJudge(fails_on_long))
    events = list(begin(plan(tmp_path, until_finding=True), jobs, ledger=known).events())
    assert len(of(FindingFiled, events)) == 1
    assert sum(event.examples for event in of(SliceFinished, events)) == 150


def test_a_campaign_until_a_finding_that_was_killed_after_it_makes_its_script_and_ends(tmp_path: Path) -> None:
    asked = plan(tmp_path, until_finding=True)
    events = run(FakeJobs(FakeJudge(fails_on_long)), asked)
    killed = logged(events[: events.index(of(FindingFiled, events)[0]) + 1])
    rest = list(begin(asked, FakeJobs(FakeJudge(fails_on_long)), past_events=killed).events())
    assert [event.kind for event in of(SliceStarted, rest)] == [SliceKind.SCRIPTED]
    assert isinstance(rest[-1], CampaignFinished)


def test_a_campaign_goes_on_until_a_finding_if_it_was_begun_so(tmp_path: Path) -> None:
    def again(*, begun: bool, asked: bool) -> bool:
        start = opening(plan(tmp_path, until_finding=begun), campaign="1", jobs=1, environment={})
        past = Past("1", [replace(start, backends=("torch_sdpa",))], torn_bytes=0)
        home, none = Home(tmp_path), None
        return plan_again(past, home, jobs=none, ray=none, ledger=none, until_finding=asked, begun=0.0).until_finding

    assert again(begun=True, asked=False)
    assert again(begun=False, asked=True)
    assert not again(begun=False, asked=False)


def test_a_trial_goes_on_as_one_with_the_same_tiers_and_features(tmp_path: Path) -> None:
    asked = plan(tmp_path, trial=2.0, backends=("torch_sdpa",))
    asked = dataclasses.replace(asked, without=(Tier.T3,), only=("16 bits",), never=("values",))
    past = Past("1", logged([opening(asked, campaign="1", jobs=1, environment={})]), torn_bytes=0)
    again = plan_again(past, Home(tmp_path), jobs=None, ray=None, ledger=None, begun=0.0)
    assert (again.trial, again.without) == (2.0, (Tier.T3,))
    assert again.part == asked.part


def test_a_campaign_of_promised_calls_goes_on_as_one_and_names_the_others(tmp_path: Path) -> None:
    asked = dataclasses.replace(plan(tmp_path, backends=("torch_sdpa_any_scale", "torch_sdpa")), promised=True)
    (start,) = logged([opening(asked, campaign="1", jobs=1, environment={})])
    assert isinstance(start, CampaignStarted)
    assert "a softmax scale of 0" in start.left_out["torch_sdpa_any_scale"]
    assert start.capabilities["torch_sdpa_any_scale"].edges == ()
    past = Past("1", [start], torn_bytes=0)
    assert plan_again(past, Home(tmp_path), jobs=None, ray=None, ledger=None, begun=0.0).promised


def test_a_job_that_says_nothing_is_killed_and_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SECONDS_OF_SILENCE", 0.0)
    monkeypatch.setattr(engine, "SECONDS_PER_LOOK_AT_ALL", 0.0)
    events = list(begin(plan(tmp_path), ScriptedJobs([])).events())
    assert len(of(JobRestarted, events)) == engine.DEATHS_IN_A_ROW - 1
    assert len(of(JobFailed, events)) == 1


def test_a_long_wait_for_a_case_is_reported_until_it_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SECONDS_PER_LOOK_AT_ALL", 0.0)
    monkeypatch.setattr(engine, "SECONDS_TO_REPORT", 0.0)
    monkeypatch.setattr(engine, "SECONDS_PER_REPORT", 0.0)
    stop = threading.Event()
    jobs = ScriptedJobs([Ready()])
    events: list[Event] = []
    for event in begin(plan(tmp_path), jobs, stop=stop).events():
        events.append(event)
        waits = of(CaseAwaited, events)
        if len(waits) == 3:
            # The case ends.
            jobs._script.append(Tally(searched=1, cases=1))
        if waits and waits[-1].over:
            stop.set()
    assert [event.job for event in of(JobReady, events)] == [0]
    assert [event.over for event in waits][:4] == [False, False, False, True]
    assert waits[0].seconds <= waits[1].seconds <= waits[3].seconds


@pytest.mark.parametrize(("seconds", "gone"), [(12.0, True), (2.0, False)])
def test_a_driver_that_keeps_all_jobs_waiting_at_the_end_is_gone(tmp_path: Path, seconds: float, *, gone: bool) -> None:
    asked = plan(tmp_path, examples=None, seconds=0.2)
    waits = DriverAwaited(seconds=seconds, last=decode(7))
    jobs = ScriptedJobs([Ready(), waits])
    campaign = begin(asked, jobs)
    campaign._limits = Limits(0.2, 0.3, 0.3)
    failed = of(JobFailed, list(campaign.events()))
    assert [each.text.partition(";")[0] for each in failed] == [
        "the GPU does not answer any more: its driver has created no CUDA context for 12 s"
    ] * gone


@pytest.mark.slow
def test_a_job_without_a_worker_waits_for_no_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SECONDS_PER_LOOK_AT_ALL", 0.0)
    monkeypatch.setattr(engine, "SECONDS_TO_REPORT", 0.0)
    events = list(begin(plan(tmp_path, examples=None, seconds=0.05), ScriptedJobs([])).events())
    assert not of(CaseAwaited, events)


def test_a_past_finding_that_is_supported_no_more_is_neither_fixed_nor_open(tmp_path: Path) -> None:
    run(FakeJobs(FakeJudge(fails_on_long)), plan(tmp_path))
    (record,) = begin(plan(tmp_path), ScriptedJobs([]), campaign="2")._past
    refused = Rechecked(finding=record.name, observations=(), runs=1, unsupported="no such head dim")
    stop = threading.Event()
    events: list[Event] = []
    for event in begin(plan(tmp_path), ScriptedJobs([refused]), campaign="2", stop=stop).events():
        events.append(event)
        if isinstance(event, Trouble):
            stop.set()
    assert not of(FindingChecked, events)
    (trouble,) = of(Trouble, events)
    assert trouble.text == f"finding {record.name} can't be run any more: no such head dim"
    (later,) = begin(plan(tmp_path), ScriptedJobs([]), campaign="3")._past
    assert later.state is State.NEW
