"""What a hunt makes of failures that come and go: caught with a rate, caught as seen once, or lost."""

from collections.abc import Sequence

import pytest
from fake_search import Counting, FakeJudge, decode, hunt, observed
from msgspec.structs import replace

from attnfuzz.harness.search.messages import (
    AnyMessage,
    Caught,
    Lost,
    Rechecked,
    Replay,
    ShrinkBudget,
    Suspect,
)
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.recurrence import Recurrence, Rerun
from attnfuzz.reference.case import Case, Pace

FAULT = observed(Kind.ILLEGAL_ACCESS, "query")
UNWRITTEN = observed(Kind.UNWRITTEN)
NOTHING = ShrinkBudget(runs=0, seconds=0.0)
SMALL = ShrinkBudget(runs=100, seconds=40.0)


def sent_by(judge: FakeJudge, replays: Sequence[Replay] = (), shrink: ShrinkBudget = SMALL) -> list[AnyMessage]:
    return hunt(judge, examples=100, shrink=shrink, replays=tuple(replays))[1]


def settled(sent: Sequence[AnyMessage]) -> list[Caught | Lost]:
    return [message for message in sent if isinstance(message, Caught | Lost)]


@pytest.mark.parametrize("shrink", [SMALL, NOTHING])
def test_a_fault_that_never_comes_back_is_caught_as_seen_once(shrink: ShrinkBudget) -> None:
    sent = sent_by(Counting(FAULT, 1), shrink=shrink)
    (found,) = settled(sent)
    assert isinstance(found, Caught)
    assert found.recurrence is not None
    assert found.recurrence.seen_once
    assert found.observation == FAULT
    assert [type(each) for each in sent if isinstance(each, Suspect | Caught)] == [Suspect, Caught]


def test_another_failure_that_never_recurs_is_lost_with_its_attempts() -> None:
    (found,) = settled(sent_by(Counting(UNWRITTEN, 1)))
    assert isinstance(found, Lost)
    assert found.tried is not None
    assert found.tried.seen_once
    assert {Rerun.ALONE, Rerun.LOAD, Rerun.GUARD} <= {trial.way for trial in found.tried.tried}


def test_a_failure_of_each_17th_run_is_caught_with_its_rate() -> None:
    (found,) = settled(sent_by(Counting(UNWRITTEN, every=17)))
    assert isinstance(found, Caught)
    assert found.recurrence is not None
    assert found.recurrence.interval[0] <= 1 / 17 <= found.recurrence.interval[1]


def test_one_that_came_back_by_luck_is_caught_with_its_rate() -> None:
    # It fails as it is drawn and as it is confirmed, and then no more but at times.
    (found,) = settled(sent_by(Counting(UNWRITTEN, 1, 2, every=17)))
    assert isinstance(found, Caught)
    assert found.recurrence is not None
    assert found.recurrence.failed < found.recurrence.runs


def test_one_that_always_fails_has_no_rate() -> None:
    (found,) = settled(sent_by(Counting(UNWRITTEN, every=1)))
    assert isinstance(found, Caught)
    assert found.recurrence is None


def test_a_death_that_was_left_over_and_passes_now_is_caught_as_seen_once() -> None:
    (found,) = settled(sent_by(Counting(FAULT), [Replay(case=decode(150), failed=(FAULT,))]))
    assert isinstance(found, Caught)
    assert found.recurrence is not None
    assert found.recurrence.seen_once


@pytest.mark.parametrize(("judge", "fails"), [(Counting(UNWRITTEN, every=17), True), (Counting(UNWRITTEN), False)])
def test_a_flaky_finding_is_not_fixed_after_one_passing_run(judge: FakeJudge, fails: bool) -> None:
    recurrence = Recurrence(way=Rerun.ALONE, runs=136, failed=8)
    kept = Replay(case=decode(150), finding="it", failed=(UNWRITTEN,), recurrence=recurrence)
    (checked,) = [message for message in sent_by(judge, [kept]) if isinstance(message, Rechecked)]
    assert bool(checked.observations) is fails
    assert checked.runs == (17 if fails else recurrence.runs_to_show)
    assert not checked.inconclusive


@pytest.mark.parametrize(("prompt_too", "needs"), [(False, ("late device",)), (True, ())])
def test_a_flaky_failure_needs_a_late_device_if_a_prompt_one_never_shows_it(
    *, prompt_too: bool, needs: tuple[str, ...]
) -> None:
    class Late(Counting):
        def verdict(self, case: Case) -> Verdict:
            return super().verdict(case) if prompt_too or case.pace is Pace.LATE else Verdict()

    drawn = replace(decode(150), pace=Pace.LATE)
    judge = Late(UNWRITTEN, every=2)
    replays = [Replay(case=drawn, failed=(UNWRITTEN,))]
    (found,) = settled(sent_by(judge, replays))
    assert isinstance(found, Caught)
    assert found.needs == needs


HANG = observed(Kind.HANG, "")


@pytest.mark.parametrize(("prompt_too", "needs"), [(False, ("late device",)), (True, ())])
def test_a_case_that_hangs_on_a_late_device_alone_is_not_run_often(*, prompt_too: bool, needs: tuple[str, ...]) -> None:
    class Hanging(FakeJudge):
        hung = 0

        def verdict(self, case: Case) -> Verdict:
            fails = prompt_too or case.pace is Pace.LATE
            self.hung += fails
            return Verdict(observations=(HANG,) if fails else ())

    judge = Hanging(lambda _: ())
    drawn = replace(decode(150), pace=Pace.LATE)
    (found,) = settled(sent_by(judge, [Replay(case=drawn, failed=(HANG,))]))
    assert isinstance(found, Caught)
    assert found.needs == needs
    assert (found.case == drawn) is not prompt_too
    # Once when it is found, and once in a fresh one.
    assert (judge.hung == 2) is not prompt_too
