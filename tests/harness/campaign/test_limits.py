"""A campaign with an amount of time is over soon after it, whatever its jobs do."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_search
import pytest
from fake_campaign import FakeCorpus, ScriptedJobs, begin, logged, of, plan
from fake_search import FakeJobs, FakeJudge, decode, fails_on_long, kv_lens, observed

from attnfuzz.harness.campaign import engine
from attnfuzz.harness.campaign.events import (
    CampaignFinished,
    CaseKept,
    Event,
    FindingFiled,
    Progress,
    SliceFinished,
    SuspectSeen,
    Trouble,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.knowledge import OUT_OF_TIME
from attnfuzz.harness.campaign.plan import GRACE_SECONDS, OVERRUN, Limits
from attnfuzz.harness.search import slice_time, spending
from attnfuzz.harness.search.messages import (
    AnyMessage,
    Caught,
    Interesting,
    Message,
    Replay,
    SliceDone,
    Suspect,
    Tally,
)
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case

SECONDS = 30.0
SUSPECT = Suspect(fingerprint=Fingerprint.of("fake", observed()), case=decode(7), observation=observed())


class Clock:
    """Time that passes only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        self._first = self.now
        stands_still = SimpleNamespace(monotonic=lambda: self.now, time=time.time)
        for module in (engine, slice_time, spending):
            monkeypatch.setattr(module, "time", stands_still)

    @property
    def passed(self) -> float:
        return self.now - self._first


class SlowJudge(FakeJudge):
    """Takes a second for each case."""

    def __init__(self, clock: Clock, fails: Callable[[list[int]], tuple[Observation, ...]]) -> None:
        super().__init__(fails)
        self._clock = clock

    def verdict(self, case: Case) -> Verdict:
        self._clock.now += 1.0
        return super().verdict(case)


class SlowJobs(ScriptedJobs):
    """Each message, and each look for one that has not come, takes some seconds."""

    def __init__(self, clock: Clock, script: Iterable[Message | BaseException], seconds: float = 1.0) -> None:
        super().__init__(script)
        self._clock, self._seconds = clock, seconds

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        self._clock.now += self._seconds
        return super().next_message(timeout)


def always(_: list[int]) -> tuple[Observation, ...]:
    return (observed(),)


@pytest.mark.parametrize("late", [0.0, 1.5, 100.0])
@pytest.mark.parametrize("seconds", [1.0, 30.0, 7200.0])
def test_a_search_has_its_time_and_the_rest_fits_into_the_grace(seconds: float, late: float) -> None:
    limits = Limits.of(seconds, late=late)
    assert limits.searched == seconds
    assert seconds <= limits.shrunk <= limits.ended
    assert limits.ended + late < max(seconds * (1 + OVERRUN) + GRACE_SECONDS, seconds + late + 0.1)


def test_a_campaign_that_goes_on_has_its_grace_anew() -> None:
    assert Limits.of(SECONDS, spent=60.0).ended - 60.0 == Limits.of(SECONDS).ended - SECONDS


def slow_hunt(clock: Clock, fails: Callable[[list[int]], tuple[Observation, ...]], **task: Any) -> list[AnyMessage]:
    return fake_search.hunt(SlowJudge(clock, fails), **task)[1]


def test_a_slice_shrinks_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    sent = slow_hunt(clock, fails_on_long, seconds=20.0, shrink_seconds=25.0)
    assert [message for message in sent if isinstance(message, Caught)]
    # The smallest, and the case that Hypothesis left, are then confirmed with up to three seeds each.
    assert clock.passed <= 25.0 + 6.0


def test_time_in_which_a_job_starts_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    slow_hunt(clock, fails_on_long, seconds=20.0, handed_at=clock.now - 20.0)
    assert clock.passed == 0.0


def test_past_findings_are_run_again_only_as_long_as_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    replays = tuple(Replay(case=decode(number), finding=str(number)) for number in range(50))
    slow_hunt(clock, lambda _: (), replays=replays, seconds=10.0)
    assert clock.passed <= 10.0 + 4.0


def test_jobs_that_never_answer_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    asked = plan(tmp_path, examples=None, seconds=SECONDS)
    events = list(begin(asked, SlowJobs(clock, [SUSPECT])).events())
    assert isinstance(events[-1], CampaignFinished)
    assert not events[-1].interrupted
    assert SECONDS < clock.passed <= SECONDS * (1 + OVERRUN) + GRACE_SECONDS
    assert [event.reason for event in of(UnconfirmedKept, events)] == [OUT_OF_TIME]
    assert [event.index for event in of(SliceFinished, events)] == [0]


def test_a_suspect_that_is_left_over_when_the_time_is_up_is_confirmed_and_filed_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    asked = plan(tmp_path, examples=None, seconds=SECONDS)
    log: list[Event] = []
    for event in begin(asked, ScriptedJobs([SUSPECT])).events():
        log.append(event)
        if isinstance(event, SuspectSeen):
            break
    late = Progress(at=SECONDS + 20.0, backend="fake", tally=Tally(searched=0, cases=0, deaths=0))
    jobs = FakeJobs(SlowJudge(clock, always))
    again = list(begin(asked, jobs, past_events=logged([*log, late])).events())
    (filed,) = of(FindingFiled, again)
    assert kv_lens(filed.case) == [7]
    assert [task.shrink.runs for task in jobs.slices] == [0]
    assert not of(UnconfirmedKept, again)


def test_cases_are_kept_only_as_long_as_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    news = [Interesting(case=decode(number), pairs=((str(number), "x"),)) for number in range(100)]
    done = SliceDone(tally=Tally(searched=1, cases=1, deaths=0), stopped_early=False, seconds=1.0, unsupported={})

    class SlowCorpus(FakeCorpus):
        def keep(self, *args: object, **options: object) -> str | None:
            clock.now += 1.0
            return super().keep(*args, **options)  # type: ignore[arg-type]

    asked = plan(tmp_path, examples=None, seconds=SECONDS)
    jobs = SlowJobs(clock, [*news, done], seconds=0.3)
    events = list(begin(asked, jobs, corpus=SlowCorpus(tmp_path / "corpus")).events())
    assert clock.passed <= SECONDS * (1 + OVERRUN) + GRACE_SECONDS
    assert len(of(CaseKept, events)) < len(news)
    assert not of(Trouble, events), "a later campaign draws others"


def test_work_skipped_for_lack_of_time_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(begin(plan(tmp_path, examples=200), FakeJobs(FakeJudge(fails_on_long)), campaign="1").events())
    clock = Clock(monkeypatch)
    corpus = FakeCorpus(tmp_path / "corpus", [decode(number) for number in range(30)])
    asked = plan(tmp_path, examples=None, seconds=SECONDS, backends=("fake", "other"))
    events = list(begin(asked, SlowJobs(clock, []), campaign="2", corpus=corpus).events())
    assert [event.text for event in of(Trouble, events)] == [
        "no time was left to run 1 past finding",
        "no time was left to run 30 kept cases",
    ]


def test_a_backend_that_had_less_than_its_floor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    asked = plan(tmp_path, examples=None, seconds=SECONDS, backends=("fake", "other"))
    events = list(begin(asked, SlowJobs(clock, [])).events())
    (text,) = (event.text for event in of(Trouble, events))
    assert text.startswith("other was searched for 0 s, ")
