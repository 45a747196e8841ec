"""What a job does next: leaning, and the kept cases that are run first."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaign_events import filed, slice_finished
from fake_campaign import FakeCorpus, ScriptedJobs, begin, of, plan
from fake_search import FakeJobs, FakeJudge, decode, observed
from msgspec import structs

from attnfuzz.harness.campaign import tasks
from attnfuzz.harness.campaign.comparisons import Comparisons
from attnfuzz.harness.campaign.events import (
    Event,
    SliceFinished,
    SliceStarted,
    SuspectSeen,
)
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.campaign.minimizing import Minimizing
from attnfuzz.harness.campaign.plan import Limits, Plan
from attnfuzz.harness.campaign.replays import REPLAYS_PER_SLICE, Replays, kept_cases
from attnfuzz.harness.campaign.schedule import Schedule, drawn_slice
from attnfuzz.harness.campaign.scripting import Scripting
from attnfuzz.harness.campaign.shrinking import ShrinkingTime
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.campaign.tasks import Tasks
from attnfuzz.harness.campaign.under_way import UnderWay
from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.search.messages import Interesting, Slice, SliceDone, SliceKind, Suspect, Tally
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.calls import Call, CallCase
from attnfuzz.strategies.coverage import Pair
from attnfuzz.strategies.lean import Lean

DONE = SliceDone(tally=Tally(searched=250, cases=250, deaths=0), stopped_early=False, seconds=1.0, unsupported={})


def lean(backend: str, reached: Collection[Pair], _seed: int) -> Lean:
    """A lean that tells what it was chosen by."""
    return Lean((backend, f"{len(reached)} reached"))


def drawn(out: Path, *, trial: float | None = None) -> list[Slice]:
    """The slices of a campaign that reaches two pairs in the first one."""
    two = Interesting(case=decode(1), pairs=(("a", "b"), ("a", "c")))
    jobs = ScriptedJobs([two, *[DONE] * 10])
    asked = replace(plan(out, examples=None, seconds=60.0), trial=trial)
    events = begin(asked, jobs, choose_lean=lean).events()
    while len(jobs.slices) < 10:
        next(events)
    return jobs.slices


def test_every_other_slice_is_biased_towards_unreached_pairs(tmp_path: Path) -> None:
    leans = [task.lean for task in drawn(tmp_path)]
    assert leans == [Lean(), Lean(("fake", "2 reached"))] * 5


def test_no_slice_of_a_trial_leans(tmp_path: Path) -> None:
    assert {task.lean for task in drawn(tmp_path, trial=0.0)} == {Lean()}


def test_each_slice_is_reported_how_much_time_is_left(tmp_path: Path) -> None:
    seconds = [task.seconds or 0.0 for task in drawn(tmp_path)]
    assert seconds == sorted(seconds, reverse=True)
    assert 0.0 < seconds[0] <= 60.0


def chooser(asked: Plan, events: Collection[Event]) -> Tasks:
    """What chooses the slices of a campaign in which this happened."""
    knowledge, schedule = Knowledge(), Schedule(asked.backends, examples=asked.examples, seed=asked.seed)
    for event in events:
        knowledge(event)
        schedule(event)
    return Tasks(
        plan=asked,
        knowledge=knowledge,
        standing=Standing.of(events),
        schedule=schedule,
        shrinking=ShrinkingTime(asked.jobs),
        replays=Replays(asked.backends, past=[], kept=lambda _: (), seed=asked.seed),
        comparisons=Comparisons(knowledge, seed=asked.seed),
        minimizing=Minimizing(knowledge, seed=asked.seed),
        scripting=Scripting(seed=asked.seed, jobs=1),
        passed_over=lambda _: (),
        choose_lean=lean,
        limits=Limits.of(asked.seconds),
    )


def searched(backend: str, seconds: float) -> SliceFinished:
    return slice_finished(backend, seconds=seconds)


SUSPECT = SuspectSeen(at=0.0, fingerprint=Fingerprint.of("fake", observed()), case=decode(7), observation=observed())


def test_no_slice_has_more_time_than_a_part_of_its_backends_share(tmp_path: Path) -> None:
    asked = plan(tmp_path, examples=None, seconds=60.0, backends=("fake", "other"))
    limit = asked.seconds_per_slice
    for at, events in ((0.0, []), (0.0, [SUSPECT]), (59.0, [])):
        run = chooser(asked, events).next(at, [], {})
        assert run is not None
        assert run.task.seconds == (limit if at == 0.0 else 1.0)


def test_a_number_of_examples_knows_no_time(tmp_path: Path) -> None:
    for events in ([], [SUSPECT], [SUSPECT, searched("fake", 600.0)]):
        run = chooser(plan(tmp_path, backends=("fake", "other")), events).next(700.0, [], {})
        assert run is not None
        assert run.task.seconds is None
        assert bool(run.again) == bool(events), "suspects come first, whatever they cost"


def test_a_failure_that_another_job_is_settling_is_left_to_it(tmp_path: Path) -> None:
    asked = plan(tmp_path, examples=None, seconds=60.0)
    found = Suspect(fingerprint=SUSPECT.fingerprint, case=SUSPECT.case, observation=SUSPECT.observation)
    at_work = UnderWay(drawn_slice("fake", 0, 250, seed=1), since=0.0, suspects={found.fingerprint: found})
    for under_way, held in (([at_work], (found.fingerprint,)), ([], ())):
        run = chooser(asked, [searched("fake", 1.0)]).next(2.0, under_way, {})
        assert run is not None
        assert (run.task.kind, run.task.held) == (SliceKind.DRAWN, held)
    other = chooser(replace(asked, backends=("fake", "other")), [searched("fake", 9.0)]).next(9.0, [at_work], {})
    assert other is not None
    assert (other.task.backend, other.task.held) == ("other", ())
    # A suspect with the same fingerprint and another case has to be settled as well.
    waiting = structs.replace(SUSPECT, case=decode(8))
    again = chooser(asked, [searched("fake", 1.0), waiting]).next(2.0, [at_work], {})
    assert again is not None
    assert (again.task.kind, again.task.held) == (SliceKind.ONCE_MORE, ())


def test_the_first_slice_that_claims_a_failure_settles_it_alone(tmp_path: Path) -> None:
    asked = plan(tmp_path, examples=None, seconds=60.0)
    choose, claimed = chooser(asked, []), structs.replace(SUSPECT.fingerprint, kind=Kind.ILLEGAL_ACCESS)
    first, second = (UnderWay(drawn_slice("fake", index, 250, seed=1), since=0.0) for index in range(2))
    both = [first, second]
    assert choose.grants(first, claimed, both)
    assert not choose.grants(second, structs.replace(claimed, place="elsewhere"), both), "a fault is one at any place"
    assert choose.grants(second, structs.replace(claimed, mode="extend"), both)
    first.suspects[claimed] = Suspect(fingerprint=claimed, case=SUSPECT.case, observation=SUSPECT.observation)
    first.settled(claimed)
    assert choose.grants(second, claimed, both)


def test_a_failure_on_file_since_a_slice_began_is_not_settled_again(tmp_path: Path) -> None:
    asked, (on_file, case) = plan(tmp_path, examples=None, seconds=60.0), (filed(decode(7)), decode(8))
    choose, task = chooser(asked, [on_file]), drawn_slice("fake", 0, 250, seed=1)
    before, since = (UnderWay(structs.replace(task, known=known), since=0.0) for known in ((), (on_file.fingerprint,)))
    assert not choose.grants(before, on_file.fingerprint, [before])
    assert choose.grants(since, on_file.fingerprint, [since]), "it is beside the known one"
    again = UnderWay(task, since=0.0, again=((on_file.fingerprint, case),))
    assert choose.grants(again, on_file.fingerprint, [again])


@pytest.mark.parametrize(("others", "first"), [(0.0, "other"), (9.0, "other"), (11.0, "fake")])
def test_suspects_of_a_backend_wait_for_those_that_had_less_than_their_share(
    tmp_path: Path, others: float, first: str
) -> None:
    asked = plan(tmp_path, examples=None, seconds=600.0, backends=("fake", "other"))
    run = chooser(asked, [SUSPECT, searched("fake", 30.0), searched("other", others)]).next(41.0, [], {})
    assert run is not None
    assert (run.task.backend, bool(run.again)) == (first, first == "fake")


@pytest.mark.parametrize(("seconds_of_other", "kind"), [(0.0, SliceKind.DRAWN), (1.0, SliceKind.MINIMIZED)])
def test_causes_are_minimized_before_drawing_unless_a_backend_was_not_searched(
    tmp_path: Path, seconds_of_other: float, kind: SliceKind
) -> None:
    asked = plan(tmp_path, examples=None, seconds=60.0, backends=("fake", "other"))
    drawn = structs.replace(filed(decode(7)), ablated=False)
    run = chooser(asked, [drawn, searched("fake", 30.0), searched("other", seconds_of_other)]).next(55.0, [], {})
    assert run is not None
    assert run.task.kind is kind
    assert run.task.backend == ("other" if kind is SliceKind.DRAWN else "fake")
    assert run.task.causes == () or kind is SliceKind.DRAWN, "it would explain itself"


def test_causes_are_compared_when_nothing_is_searched_any_more(tmp_path: Path) -> None:
    asked = plan(tmp_path, examples=None, seconds=60.0)
    two = [filed(decode(7), name) for name in ("one", "other")]
    limits = Limits.of(asked.seconds)
    for at, kind in ((60.0, SliceKind.COMPARED), (limits.shrunk, SliceKind.COMPARED), (limits.ended, None)):
        run = chooser(asked, two).next(at, [], {})
        assert (run and run.task.kind) is kind
        assert run is None or run.task.seconds == limits.ended - at


def test_kept_cases_may_take_a_fifth_of_the_time(tmp_path: Path) -> None:
    corpus = FakeCorpus(tmp_path, [decode(length) for length in range(2 * REPLAYS_PER_SLICE)])
    jobs = ScriptedJobs([DONE])
    events = begin(plan(tmp_path, examples=None, seconds=60.0), jobs, corpus=corpus).events()
    while not jobs.slices:
        next(events)
    (first,) = jobs.slices
    assert first.seconds is not None
    assert 0.0 < first.seconds <= 60.0 * tasks.REPLAYS_SHARE


def replays(*, cases: int, most: int | None = None, done: Collection[int] = ()) -> Replays:
    kept = [decode(length) for length in range(cases)]
    return Replays(["fake"], past=[], kept=lambda _: kept, seed=1, most=most, done=done)


def test_kept_cases_are_left_when_their_time_is_over() -> None:
    several = replays(cases=3 * REPLAYS_PER_SLICE)
    first = several.next_slice(5.0)
    assert first is not None
    assert first.seconds == 5.0
    assert several.next_slice(0.0) is None
    assert several.next_slice(5.0) is None


def test_slices_of_kept_cases_that_ended_are_not_handed_out_again() -> None:
    first = replays(cases=2 * REPLAYS_PER_SLICE).next_slice(None)
    assert first is not None
    others = replays(cases=2 * REPLAYS_PER_SLICE, done={first.seed})
    second = others.next_slice(None)
    assert second is not None
    assert second.replays != first.replays
    assert others.next_slice(None) is None


def test_a_backend_runs_the_cases_of_its_reported_bugs(tmp_path: Path) -> None:
    bug = next(bug for bug in load_bugs() if "@" in bug.shown_by)
    for backend in (bug.backend_before, bug.backend_after):
        cases = list(kept_cases(FakeCorpus(tmp_path))(backend))
        assert {case.backend for case in cases} == {backend}
        assert (bug.case_before if backend == bug.backend_before else bug.case_after) in cases


@pytest.mark.parametrize(
    "changes",
    [
        {"case": None, "why_not_here": "needs SM100"},
        {"shown_by": "flashinfer-python==0.6.8", "why_not_here": "needs a GPU"},
        {"case": CallCase(backend="trtllm_mha", buffers=(), calls=(Call(op="xqa", arguments={}),))},
    ],
    ids=["without a case", "shown by a release", "made of calls"],
)
def test_reported_bugs_that_a_campaign_cannot_run_are_left_out(
    tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = next(bug for bug in load_bugs() if bug.backend_after == "trtllm_mha")
    kept = kept_cases(FakeCorpus(tmp_path))
    monkeypatch.setattr("attnfuzz.harness.reported.bugs.load_bugs", lambda: (structs.replace(bug, **changes),))
    assert list(kept("trtllm_mha")) == []
    assert list(kept("trtllm_mla")) == []
    monkeypatch.setattr("attnfuzz.harness.reported.bugs.load_bugs", lambda: (bug,))
    assert len(list(kept("trtllm_mha"))) == 1


def test_kept_cases_of_several_backends_take_turns(tmp_path: Path) -> None:
    corpus = FakeCorpus(tmp_path / "corpus", [decode(1), structs.replace(decode(1), backend="other")])
    jobs = FakeJobs(FakeJudge(lambda _: ()))
    events = list(begin(plan(tmp_path, examples=100, backends=("fake", "other")), jobs, corpus=corpus).events())
    assert [(event.backend, event.kind) for event in of(SliceStarted, events)][:2] == [
        ("fake", SliceKind.KEPT),
        ("other", SliceKind.KEPT),
    ]
