"""What a hunt makes of failures that come and go: caught with a rate, caught as seen once, or lost."""

from collections.abc import Sequence

import pytest
from fake_search import Counting, FakeJudge, decode, hunt, kv_lens, observed, of_steps
from hypothesis import strategies as st
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
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Pace
from attnfuzz.reference.geometry import KvLayout

FAULT = observed(Kind.ILLEGAL_ACCESS, "query")
UNWRITTEN = observed(Kind.UNWRITTEN)
NOTHING = ShrinkBudget(runs=0, seconds=0.0)
SMALL = ShrinkBudget(runs=100, seconds=40.0)
LARGE = replace(SMALL, runs=1000)
CPU = Capability(layouts=(KvLayout.HND,))


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


class Stateful(FakeJudge):
    """Keeps its first case: fails at other short ones, and at long ones anyhow; at others of one request, too."""

    def __init__(self) -> None:
        super().__init__(lambda _: ())
        self._ran: list[Case] = []

    @property
    def history(self) -> tuple[Case, ...]:
        return tuple(self._ran[:-1])

    def renew(self) -> None:
        self._ran.clear()

    def verdict(self, case: Case) -> Verdict:
        lengths, later = kv_lens(case), bool(self._ran) and self._ran[0] != case
        self._ran.append(case)
        found = [UNWRITTEN] if later and max(lengths) < 100 else []
        if max(lengths) >= 150 or (later and len(lengths) == 1):
            found.append(FAULT)
        return Verdict(observations=tuple(found), rows=1)


def test_a_backend_that_keeps_state_has_its_further_failures_minimized_in_fresh_workers() -> None:
    drawn = st.lists(st.integers(0, 200), min_size=2, max_size=6).map(lambda lengths: decode(*lengths))
    _, sent = hunt(Stateful(), drawn, examples=100, shrink=LARGE, capability=CPU)
    kept, fault = (each for each in settled(sent) if isinstance(each, Caught))
    assert kept.recurrence is not None
    assert kept.recurrence.depends_on_earlier_cases
    assert (fault.recurrence, kv_lens(fault.case)) == (None, [150])


class KeepsLength(FakeJudge):
    """Keeps the length of the first step that its worker runs: fails at a longer one."""

    def __init__(self) -> None:
        super().__init__(lambda _: ())
        self._kept: int | None = None
        self._ran: list[Case] = []

    @property
    def history(self) -> tuple[Case, ...]:
        return tuple(self._ran[:-1])

    def renew(self) -> None:
        self._kept = None
        self._ran.clear()

    def verdict(self, case: Case) -> Verdict:
        self._ran.append(case)
        for at, step in enumerate(case.steps):
            longest = max((request.kv_len for request in step.requests), default=0)
            self._kept = longest if self._kept is None else self._kept
            if longest > self._kept:
                return Verdict(observations=(replace(UNWRITTEN, step=at),), rows=1)
        return Verdict(rows=1)


def test_state_that_is_kept_from_earlier_cases_is_shown_by_the_smallest_case_of_two_steps() -> None:
    drawn = st.lists(st.integers(1, 200), min_size=2, max_size=6).map(lambda lengths: decode(*lengths))
    _, sent = hunt(KeepsLength(), drawn, examples=100, shrink=LARGE, capability=CPU)
    (found,) = settled(sent)
    assert isinstance(found, Caught)
    assert (found.recurrence, found.history) == (None, ())
    assert [[request.kv_len for request in step.requests] for step in of_steps(found.case).steps] == [[0], [1]]


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
