"""A campaign's main process: budgets, filing, and the events that it tells."""

import threading
from pathlib import Path
from typing import TypeVar

import pytest
from fake_search import FakeJobs, FakeJudge, decode, kv_lens, observed

from attnfuzz.harness.campaign.engine import ATTEMPTS, Campaign
from attnfuzz.harness.campaign.events import (
    CampaignFinished,
    CampaignStarted,
    Event,
    FindingFiled,
    GapSeen,
    JobFailed,
    Progress,
    SliceFinished,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.jobs import JobEnded
from attnfuzz.harness.campaign.messages import AnyMessage, Slice, Suspect
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.failures import Observation
from attnfuzz.harness.fingerprint import Fingerprint
from attnfuzz.reference import case_file

E = TypeVar("E", bound=Event)


def plan(out: Path, *, examples: int | None = 600, seconds: float | None = None) -> Plan:
    return Plan(
        backends=("fake",), examples=examples, seconds=seconds, seed=1, jobs=1, contract="declared", guard=None, out=out
    )


def run(jobs: FakeJobs, asked: Plan, stop: threading.Event | None = None) -> list[Event]:
    campaign = Campaign(
        asked,
        jobs,
        stop=stop or threading.Event(),
        render=lambda case, _: f"rendered {kv_lens(case)}",
        export=lambda _: "print('shown')",
    )
    return list(campaign.events())


def of(kind: type[E], events: list[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def fails_on_long(lengths: list[int]) -> tuple[Observation, ...]:
    return (observed(),) if max(lengths) >= 100 else ()


def test_a_clean_campaign_uses_its_budget_and_files_nothing(tmp_path: Path) -> None:
    judge = FakeJudge(lambda _: ())
    events = run(FakeJobs(judge), plan(tmp_path))
    assert isinstance(events[0], CampaignStarted)
    assert events[-1] == CampaignFinished(at=events[-1].at, interrupted=False)
    assert sum(event.examples for event in of(SliceFinished, events)) == 600 == len(judge.judged)
    assert sum(event.cases for event in of(Progress, events)) == 600
    assert not list(tmp_path.iterdir())


def test_every_slice_has_its_own_seed(tmp_path: Path) -> None:
    events = run(FakeJobs(FakeJudge(lambda _: ())), plan(tmp_path))
    seeds = [event.seed for event in of(SliceFinished, events)]
    assert len(set(seeds)) == len(seeds) == 3


def test_a_bug_is_filed_once_and_the_rest_of_the_budget_is_still_used(tmp_path: Path) -> None:
    events = run(FakeJobs(FakeJudge(fails_on_long)), plan(tmp_path))
    (filed,) = of(FindingFiled, events)
    assert kv_lens(filed.case) == [100]
    assert filed.report == "rendered [100]"
    assert case_file.load(Path(filed.path) / "case.json") == filed.case
    assert (Path(filed.path) / "repro.py").read_text() == "print('shown')"
    assert sum(event.examples for event in of(SliceFinished, events)) == 600


def test_two_fingerprints_that_shrink_to_the_same_bug_are_one_finding(tmp_path: Path) -> None:
    def fails(lengths: list[int]) -> tuple[Observation, ...]:
        return (observed(place="key" if max(lengths) % 2 else "value"),) if max(lengths) >= 100 else ()

    events = run(FakeJobs(FakeJudge(fails)), plan(tmp_path))
    assert len(of(FindingFiled, events)) == 1


def test_what_does_not_come_back_is_kept_apart_and_given_up_in_the_end(tmp_path: Path) -> None:
    judge = FakeJudge(fails_on_long, comes_back=lambda _: False)
    events = run(FakeJobs(judge), plan(tmp_path, examples=2000))
    assert len(of(UnconfirmedKept, events)) == len(judge.confirmed) == ATTEMPTS
    assert not of(FindingFiled, events)
    assert not (tmp_path / "findings").exists()
    assert (tmp_path / "unconfirmed").is_dir()


def test_gaps_are_told_once_in_a_campaign(tmp_path: Path) -> None:
    events = run(FakeJobs(FakeJudge(lambda _: (observed(gap=True),))), plan(tmp_path))
    assert len(of(GapSeen, events)) == 1


def test_a_campaign_without_time_ends_at_once(tmp_path: Path) -> None:
    events = run(FakeJobs(FakeJudge(lambda _: ())), plan(tmp_path, examples=None, seconds=0.0))
    assert [type(event) for event in events] == [CampaignStarted, CampaignFinished]


class Stuck(FakeJobs):
    """A job that meets a suspect and says nothing more."""

    def __init__(self, then: BaseException | None, stop: threading.Event) -> None:
        super().__init__(FakeJudge(lambda _: ()))
        self._then = then
        self._stop = stop
        self._suspect = Suspect(fingerprint=Fingerprint.of("fake", observed()), case=decode(7), observation=observed())

    def start(self, job: int, task: Slice) -> None:
        self._messages.append((job, self._suspect))

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        message = super().next_message(timeout)
        if message is None:
            if self._then is not None:
                raise self._then
            self._stop.set()
        return message


def test_a_campaign_that_is_stopped_keeps_its_suspects(tmp_path: Path) -> None:
    stop = threading.Event()
    events = run(Stuck(None, stop), plan(tmp_path), stop)
    (kept,) = of(UnconfirmedKept, events)
    assert case_file.load(Path(kept.path) / "case.json") == decode(7)
    assert events[-1] == CampaignFinished(at=events[-1].at, interrupted=True)


def test_a_job_that_dies_ends_the_campaign_with_its_last_words(tmp_path: Path) -> None:
    stop = threading.Event()
    events = run(Stuck(JobEnded(0, "Traceback: oh no"), stop), plan(tmp_path), stop)
    assert [event.text for event in of(JobFailed, events)] == ["Traceback: oh no"]
    assert len(of(UnconfirmedKept, events)) == 1


def test_a_finding_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "findings").write_text("in the way")
    with pytest.raises(OSError, match="findings"):
        run(FakeJobs(FakeJudge(fails_on_long)), plan(tmp_path))
