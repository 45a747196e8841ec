"""Campaigns whose main process or whose jobs are killed, at whatever moment: nothing is lost, or counted twice."""

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fake_campaign import FakeCorpus, MortalJobs, ScriptedJobs, begin, logged, of, plan
from fake_search import FakeJobs, FakeJudge, decode, kv_lens, observed
from msgspec.structs import replace
from repetition import examples

from attnfuzz.harness.campaign import schedule, under_way
from attnfuzz.harness.campaign.events import (
    AnyEvent,
    CampaignFinished,
    CampaignResumed,
    CampaignStarted,
    Event,
    FindingChecked,
    FindingFiled,
    GapSeen,
    JobFailed,
    JobRestarted,
    LedgerRemark,
    Progress,
    SliceFinished,
    SliceStarted,
    SuspectSeen,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.jobs import JobEnded
from attnfuzz.harness.campaign.knowledge import JOB_KILLED, OUT_OF_TIME
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.campaign.tasks import MOST_CUT_OFFS
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.report.verdict import failure_words, verdict
from attnfuzz.harness.search import tally
from attnfuzz.harness.search.messages import (
    NOT_COME_BACK,
    Message,
    Rechecked,
    Slice,
    SliceDone,
    SliceKind,
    Suspect,
    Tally,
    Unable,
)
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint

SUSPECT = Suspect(fingerprint=Fingerprint.of("fake", observed()), case=decode(7), observation=observed())
BUGS = 2


def fails_in_two_ways(lengths: list[int]) -> tuple[Observation, ...]:
    """Two bugs and a gap."""
    if max(lengths) >= 120:
        return (observed(Kind.LSE_MISMATCH, "lse"),)
    if max(lengths) >= 60:
        return (observed(),)
    return (observed(Kind.EMPTY_ROW, gap=True),) if min(lengths) == 0 else ()


def passes(_: list[int]) -> tuple[Observation, ...]:
    return ()


@pytest.fixture(autouse=True)
def many_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of a few examples, and an event for each case that is judged."""
    monkeypatch.setattr(schedule, "EXAMPLES_PER_SLICE", 15)
    monkeypatch.setattr(under_way, "SECONDS_PER_PROGRESS", 0.0)
    monkeypatch.setattr(tally, "SECONDS_PER_TALLY", 0.0)


def check(events: list[Event], examples: int = 40) -> None:
    """What holds of the log of a campaign that came to its end, however often it was killed."""
    assert isinstance(events[0], CampaignStarted)
    assert isinstance(events[-1], CampaignFinished)
    assert sum(event.tally.searched for event in of(Progress, events)) == examples
    assert len({event.name for event in of(FindingFiled, events)}) == len(of(FindingFiled, events)) == BUGS
    assert {event.state for event in of(FindingFiled, events)} == {State.NEW}
    assert len(of(GapSeen, events)) == 1
    assert not of(UnconfirmedKept, events)
    numbers = Counter(event.index for event in of(SliceStarted, events) if event.kind is SliceKind.DRAWN)
    assert set(numbers.values()) == {1}, "no slice is drawn twice"
    assert all(one.at <= other.at for one, other in itertools.pairwise(events))


def some_of_each_kind(events: Sequence[Event], count: int) -> list[int]:
    """The numbers of the first `count` events of each kind, from 1 on."""
    numbers: dict[type[Event], list[int]] = defaultdict(list)
    for number, event in enumerate(events, 1):
        numbers[type(event)].append(number)
    return sorted(number for own in numbers.values() for number in own[:count])


@pytest.mark.slow
@examples(1, 20)
@pytest.mark.parametrize("acts_once_more", [False, True], ids=["after it is reported", "before it is reported"])
def test_a_campaign_killed_at_any_event_continues_with_the_same_results(
    tmp_path: Path, count: int, *, acts_once_more: bool
) -> None:
    whole = list(begin(plan(tmp_path / "whole", examples=40), FakeJobs(FakeJudge(fails_in_two_ways))).events())
    check(whole)
    for killed_after in some_of_each_kind(whole[:-1], count):
        asked = plan(tmp_path / str(killed_after), examples=40)
        going = begin(asked, FakeJobs(FakeJudge(fails_in_two_ways))).events()
        log = logged(islice(going, killed_after))
        if acts_once_more:
            next(going, None)
        going.close()  # type: ignore[attr-defined]
        jobs = FakeJobs(FakeJudge(fails_in_two_ways))
        again = list(begin(asked, jobs, past_events=log, torn_bytes=3).events())
        assert of(CampaignResumed, again)[0].torn_bytes == 3
        check([*log, *again])
        assert len(list((asked.out / "findings").iterdir())) == BUGS


def test_a_campaign_that_is_killed_again_and_again_comes_to_its_end(tmp_path: Path) -> None:
    asked = plan(tmp_path, examples=40)
    log: list[AnyEvent] = []
    for _ in range(200):
        going = begin(asked, FakeJobs(FakeJudge(fails_in_two_ways)), past_events=log).events()
        log += logged(islice(going, 30))
        if isinstance(log[-1], CampaignFinished):
            break
    assert len(of(CampaignResumed, log)) > 3
    check(list(log))


@pytest.mark.parametrize(("spent", "slices"), [(40.0, 1), (100.0, 0)], ids=["some is left", "none is left"])
def test_the_time_that_was_spent_before_a_kill_counts(tmp_path: Path, spent: float, slices: int) -> None:
    budget = 100.0
    asked = plan(tmp_path, examples=None, seconds=budget)
    first = list(islice(begin(asked, FakeJobs(FakeJudge(passes))).events(), 4))
    late = [*first, Progress(at=spent, backend="fake", tally=Tally(searched=0, cases=0, deaths=0))]
    jobs = FakeJobs(FakeJudge(passes))
    again = begin(asked, jobs, past_events=logged(late)).events()
    assert next(again).at >= spent
    next(event for event in again if isinstance(event, SliceFinished | CampaignFinished))
    assert len(jobs.slices) == slices
    assert all(task.seconds is not None and task.seconds <= budget - spent for task in jobs.slices)


def test_kept_cases_and_findings_are_not_run_again_after_a_kill(tmp_path: Path) -> None:
    list(begin(plan(tmp_path, examples=200), FakeJobs(FakeJudge(fails_in_two_ways)), campaign="1").events())
    asked = plan(tmp_path, examples=200)
    corpus = FakeCorpus(tmp_path / "corpus", [decode(number) for number in range(100, 140)])
    going = begin(asked, FakeJobs(FakeJudge(fails_in_two_ways)), campaign="2", corpus=corpus).events()
    log: list[AnyEvent] = []
    for event in going:
        log += logged([event])
        if len(of(SliceFinished, log)) == 2:
            break
    jobs = FakeJobs(FakeJudge(fails_in_two_ways))
    again = list(begin(asked, jobs, campaign="2", corpus=corpus, past_events=log).events())
    assert len(of(FindingChecked, [*log, *again])) == BUGS
    kept = [len(task.replays) for task in jobs.slices if task.replays]
    assert kept == [20], "of 40 kept cases, those of the second slice are left"
    assert not of(FindingFiled, again)


@pytest.mark.slow
def test_a_stopped_campaign_keeps_its_suspects_and_settles_them_when_it_goes_on(tmp_path: Path) -> None:
    stop = threading.Event()
    asked = plan(tmp_path)
    first: list[Event] = []
    for event in begin(asked, ScriptedJobs([SUSPECT]), stop=stop).events():
        first.append(event)
        if isinstance(event, SuspectSeen):
            stop.set()
    (kept,) = of(UnconfirmedKept, first)
    assert (kept.case, kept.reason) == (decode(7), OUT_OF_TIME)
    assert isinstance(first[-1], CampaignFinished)
    assert first[-1].interrupted
    jobs = FakeJobs(FakeJudge(lambda lengths: (observed(),) if 7 in lengths else ()))
    again = list(begin(asked, jobs, past_events=logged(first)).events())
    assert [replay.case for replay in jobs.slices[0].replays] == [decode(7)]
    assert len(of(FindingFiled, again)) == 1


def test_a_suspect_that_was_left_over_and_passes_now_did_not_come_back(tmp_path: Path) -> None:
    log = logged(islice(begin(plan(tmp_path), ScriptedJobs([SUSPECT])).events(), 3))
    assert isinstance(log[-1], SuspectSeen)
    again = list(begin(plan(tmp_path), FakeJobs(FakeJudge(passes)), past_events=log).events())
    assert [event.reason for event in of(UnconfirmedKept, again)] == [NOT_COME_BACK]


def test_suspects_that_a_slice_did_not_come_to_run_in_the_next(tmp_path: Path) -> None:
    other = replace(SUSPECT, fingerprint=Fingerprint.of("fake", observed(Kind.LSE_MISMATCH)), case=decode(8))
    drawn = SliceDone(tally=Tally(searched=9, cases=9, deaths=0), stopped_early=True, seconds=1.0, unsupported={})
    stop = threading.Event()
    jobs = ScriptedJobs([SUSPECT, other, drawn, replace(drawn, replayed=1, seconds=99.0)])
    sent: list[Event] = []
    for event in begin(plan(tmp_path), jobs, stop=stop).events():
        sent.append(event)
        if len(of(SliceStarted, sent)) == 3:
            stop.set()
    again, left = ([kv_lens(replay.case) for replay in task.replays] for task in jobs.slices[1:])
    assert (again, left) == ([[7], [8]], [[8]])
    assert [(kv_lens(event.case), event.reason) for event in of(UnconfirmedKept, sent)] == [
        ([7], NOT_COME_BACK),
        ([8], OUT_OF_TIME),
    ]


@pytest.mark.slow
def test_jobs_that_are_killed_all_the_time_cost_nothing_but_time(tmp_path: Path) -> None:
    for count in (1, 2):
        jobs = MortalJobs(FakeJudge(fails_in_two_ways), [3, 20, 7, 1, 60, 33, 18, 25, 4, 90, 11, 150], count)
        events = list(begin(plan(tmp_path / str(count), examples=40, jobs=count), jobs).events())
        check(events)
        assert sum(jobs.restarts.values()) == len(of(JobRestarted, events)) >= 4
        assert sum(event.examples for event in of(SliceFinished, events)) == 40


JUDGED = Tally(cases=1, deaths=0, shrinking=False)
KILLED = JobEnded(0, "killed", killed=True)


def until_it_draws(jobs: ScriptedJobs, home: Path, **options: Any) -> None:
    """Run a campaign up to its first slice that draws."""
    stop = threading.Event()
    for event in begin(plan(home), jobs, stop=stop, **options).events():
        if isinstance(event, SliceStarted) and event.index == 0:
            stop.set()


def test_a_suspect_whose_job_was_killed_runs_again_first_and_is_not_shrunk_for_ever(tmp_path: Path) -> None:
    stop = threading.Event()
    jobs = ScriptedJobs([JUDGED, SUSPECT, KILLED, JUDGED, SUSPECT, KILLED])
    for event in begin(plan(tmp_path), jobs, stop=stop).events():
        if isinstance(event, SliceStarted) and len(jobs.slices) == 2:
            stop.set()
    first, again, once_more = jobs.slices
    assert not first.replays
    assert [replay.case for replay in again.replays] == [replay.case for replay in once_more.replays] == [decode(7)]
    assert again.shrink.runs > once_more.shrink.runs == 0


def test_a_suspect_whose_job_is_killed_each_time_is_given_up(tmp_path: Path) -> None:
    script: list[Message | BaseException] = [JUDGED, SUSPECT, KILLED] * MOST_CUT_OFFS
    jobs = ScriptedJobs(script)
    stop = threading.Event()
    sent: list[Event] = []
    for event in begin(plan(tmp_path), jobs, stop=stop).events():
        sent.append(event)
        if len(of(SliceStarted, sent)) == MOST_CUT_OFFS + 1:
            stop.set()
    assert [event.reason for event in of(UnconfirmedKept, sent)] == [JOB_KILLED]
    assert [bool(task.replays) for task in jobs.slices] == [False, *[True] * (MOST_CUT_OFFS - 1), False]


def test_a_job_that_fails_by_itself_ends_the_campaign_with_its_last_words(tmp_path: Path) -> None:
    events = list(begin(plan(tmp_path), ScriptedJobs([SUSPECT, JobEnded(0, "Traceback: oh no")])).events())
    assert [event.text for event in of(JobFailed, events)] == ["Traceback: oh no"]
    assert len(of(UnconfirmedKept, events)) == 1


def test_a_lost_gpu_ends_the_campaign_in_one_line_and_keeps_its_failures(tmp_path: Path) -> None:
    """Another job's failure had arrived, and the case that ran last is kept as well."""
    last = Unable(text="the GPU does not answer any more: no device", last=decode(9))
    (failed,) = of(JobFailed, events := list(begin(plan(tmp_path), ScriptedJobs([JUDGED, last, SUSPECT])).events()))
    suspect, ran_last = sorted(of(UnconfirmedKept, events), key=lambda event: event.case == decode(9))
    assert suspect.case == SUSPECT.case
    assert failed.fixable
    assert failed.text == f"{last.text}; the case that ran last: attnfuzz replay {ran_last.path}"
    assert Path(ran_last.path).is_dir()
    standing = Standing.of(events)
    assert failure_words(failed) == f"T{failed.text[1:]}."
    assert verdict(standing).text.startswith("The campaign ended early: ")


def test_a_job_that_is_killed_before_it_judges_anything_is_given_up_after_some_times(tmp_path: Path) -> None:
    jobs = ScriptedJobs([KILLED] * 9)
    events = list(begin(plan(tmp_path), jobs).events())
    assert len(of(JobRestarted, events)) == 2
    assert len(of(JobFailed, events)) == 1


def test_a_slice_of_kept_cases_whose_job_was_killed_runs_once_more(tmp_path: Path) -> None:
    corpus = FakeCorpus(tmp_path / "corpus", [decode(300)])
    jobs = ScriptedJobs([JUDGED, KILLED, JUDGED, KILLED])
    until_it_draws(jobs, tmp_path, corpus=corpus)
    kept = [[kv_lens(replay.case) for replay in task.replays] for task in jobs.slices]
    assert kept == [[[300]], [[300]], []]


@pytest.mark.slow
def test_a_past_finding_that_no_job_lives_to_check_is_searched_for_like_any_other(tmp_path: Path) -> None:
    list(begin(plan(tmp_path, examples=200), FakeJobs(FakeJudge(fails_in_two_ways)), campaign="1").events())
    jobs = ScriptedJobs([JUDGED, KILLED, JUDGED, KILLED])
    until_it_draws(jobs, tmp_path, campaign="2")
    assert [len(task.replays) for task in jobs.slices] == [BUGS, BUGS, 0]
    assert [len(task.known) for task in jobs.slices] == [BUGS, BUGS, 0]


def test_past_findings_that_a_killed_job_had_checked_are_not_checked_again(tmp_path: Path) -> None:
    list(begin(plan(tmp_path, examples=200), FakeJobs(FakeJudge(fails_in_two_ways)), campaign="1").events())
    (first, second) = begin(plan(tmp_path), ScriptedJobs([]), campaign="2")._past
    checked = Rechecked(finding=first.name, observations=(first.observation,), runs=1)
    jobs = ScriptedJobs([JUDGED, KILLED, JUDGED, checked, KILLED, JUDGED, KILLED])
    until_it_draws(jobs, tmp_path, campaign="2")
    names = [[replay.finding for replay in task.replays] for task in jobs.slices]
    assert names == [[first.name, second.name], [first.name, second.name], [second.name], []]


def stopped_at_a_suspect(folder: Path) -> list[Event]:
    """The events of a campaign that was stopped before its suspect was run again."""
    stop = threading.Event()
    first: list[Event] = []
    for event in begin(plan(folder), ScriptedJobs([SUSPECT]), stop=stop).events():
        first.append(event)
        if isinstance(event, SuspectSeen):
            stop.set()
    return first


@pytest.mark.slow
def test_a_suspect_that_was_left_over_and_then_filed_is_reported_as_a_finding_alone(tmp_path: Path) -> None:
    first = stopped_at_a_suspect(tmp_path)
    assert len(Standing.of(first).unconfirmed) == 1
    jobs = FakeJobs(FakeJudge(lambda lengths: (observed(),) if 7 in lengths else ()))
    again = list(begin(plan(tmp_path), jobs, past_events=logged(first)).events())
    standing = Standing.of([*first, *again])
    assert (len(standing.filed), standing.unconfirmed) == (1, [])


def test_a_suspect_that_was_left_over_and_then_lost_is_reported_once(tmp_path: Path) -> None:
    first = stopped_at_a_suspect(tmp_path)
    again = list(begin(plan(tmp_path), FakeJobs(FakeJudge(passes)), past_events=logged(first)).events())
    assert [each.reason for each in Standing.of([*first, *again]).unconfirmed] == [NOT_COME_BACK]


def test_remarks_on_the_ledger_that_were_cut_off_are_reported_once(tmp_path: Path) -> None:
    ledger = Ledger([Entry(backend="fake", kind=Kind.HANG, reason="never seen")])
    asked = plan(tmp_path, examples=15)
    going = begin(asked, FakeJobs(FakeJudge(passes)), ledger=ledger).events()
    log: list[AnyEvent] = []
    for event in going:
        log += logged([event])
        if isinstance(event, LedgerRemark):
            break
    again = list(begin(asked, FakeJobs(FakeJudge(passes)), ledger=ledger, past_events=log).events())
    assert len(of(LedgerRemark, [*log, *again])) == 2
    assert len(Standing.of([*log, *again]).remarks) == 1


def test_a_wall_clock_that_goes_backwards_changes_no_time_of_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = itertools.count(1e9, -3600)
    monkeypatch.setattr(time, "time", lambda: next(now))
    events = list(begin(plan(tmp_path, examples=40), FakeJobs(FakeJudge(fails_in_two_ways))).events())
    check(events)
    assert events[-1].at < 60


def test_a_continued_campaign_draws_the_same_slices_as_an_uninterrupted_one(tmp_path: Path) -> None:
    def tasks(past: list[AnyEvent]) -> list[Slice]:
        jobs = FakeJobs(FakeJudge(passes))
        list(begin(plan(tmp_path / str(len(past)), examples=60), jobs, past_events=past).events())
        return jobs.slices

    going = begin(plan(tmp_path / "first", examples=60), FakeJobs(FakeJudge(passes))).events()
    log: list[AnyEvent] = []
    for event in going:
        log += logged([event])
        if isinstance(event, SliceFinished):
            break
    whole, rest = ([(task.index, task.seed, task.examples) for task in tasks(past)] for past in ([], log))
    assert rest == whole[1:]
