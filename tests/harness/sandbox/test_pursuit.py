"""What comes and goes: in which way it is shown again, its rate, its history, and what is made of one seen once."""

import random
from collections.abc import Callable, Sequence

import msgspec
import pytest
from fake_search import decode, kv_lens, observed
from msgspec.structs import replace

from attnfuzz.harness.sandbox.again import show_again
from attnfuzz.harness.sandbox.pursuit import Effort, Pursued, Pursuit
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.recurrence import SEEN_ONCE_RUNS, Recurrence, Rerun, is_known
from attnfuzz.harness.workers.postmortem import KILLED
from attnfuzz.reference.case import Case, Guard, Pace
from attnfuzz.reference.recurrent.case import StateCase, StateMode, StateOp, StateRow, StateShape, StateStep
from attnfuzz.reference.sparse.case import SparseCase, SparseMode, SparseOp, SparseRequest, SparseStep

SUSPECT = decode(77)
TRIGGER = decode(13)
UNWRITTEN = observed(Kind.UNWRITTEN)
FULL = Effort(4000, 40.0)
FAULT = observed(Kind.ILLEGAL_ACCESS, "query")

SPARSE = SparseCase(
    backend="mine",
    ops=(SparseOp.TOP_K,),
    steps=(SparseStep(mode=SparseMode.DECODE, requests=(SparseRequest(1, 3),)),),
)
STATES = StateCase(
    backend="mine",
    op=StateOp.SSM,
    shape=StateShape(heads=1, value_heads=1, key_dim=8, value_dim=8),
    steps=(StateStep(mode=StateMode.DECODE, rows=(StateRow(lane=0, tokens=1, initial=True),)),),
)

Fails = Callable[["FakeWorkers", Case], bool]


class FakeWorkers:
    """A runner whose suspect fails as `fails` says. `ran` are the cases of the worker at work; a case takes 10 ms."""

    def __init__(self, fails: Fails, observation: Observation = UNWRITTEN) -> None:
        self.ran: list[Case] = []
        self.runs = self.renewed = self.beside = 0
        self.now = 0.0
        self.chance = random.Random(1)
        self._fails, self._observation = fails, observation

    def verdict(self, case: Case) -> Verdict:
        self.now += 0.01
        self.runs += 1
        self.ran.append(case)
        wrong = isinstance(case, Case) and kv_lens(case) == kv_lens(SUSPECT) and self._fails(self, case)
        return Verdict(observations=(self._observation,) if wrong else ())

    def renew(self) -> None:
        self.renewed += 1
        self.ran = []

    @property
    def history(self) -> tuple[Case, ...]:
        return tuple(self.ran[:-1])

    def together(self, cases: Sequence[Case]) -> list[Verdict]:
        self.beside = len(cases)
        verdicts = [self.verdict(case) for case in cases]
        self.beside = 0
        return verdicts


def at_random(rate: float) -> Fails:
    return lambda workers, _: workers.chance.random() < rate


def pursue(
    workers: FakeWorkers,
    history: Sequence[Case] = (),
    *,
    observation: Observation = UNWRITTEN,
    budget: Effort = FULL,
    late: bool = False,
) -> Pursued:
    return Pursuit(
        workers, SUSPECT, observation, history, budget, late=late, load=4, clock=lambda: workers.now
    ).outcome()


@pytest.mark.parametrize("rate", [1 / 3, 1 / 17, 1 / 100])
def test_a_random_failure_is_filed_with_a_rate_to_a_factor_of_two(rate: float) -> None:
    pursued = pursue(FakeWorkers(at_random(rate)))
    low, high = pursued.recurrence.interval
    assert pursued.is_finding
    assert low <= rate <= high
    assert is_known(pursued.recurrence.failed, pursued.recurrence.runs)


def test_a_rare_failure_is_filed_with_the_interval_that_the_budget_allows() -> None:
    pursued = pursue(FakeWorkers(at_random(1 / 1000)))
    assert pursued.is_finding
    assert pursued.recurrence.interval[0] < 1 / 1000 < pursued.recurrence.interval[1]


def test_a_failure_of_every_17th_run_is_found_by_repeating() -> None:
    pursued = pursue(FakeWorkers(lambda workers, _: len(workers.ran) % 17 == 0))
    assert pursued.recurrence.way is Rerun.ALONE
    assert pursued.recurrence.failed / pursued.recurrence.runs == pytest.approx(1 / 17, rel=0.3)


def test_a_failure_that_needs_an_earlier_case_has_it_alone_as_history() -> None:
    workers = FakeWorkers(lambda workers, _: TRIGGER in workers.ran)
    history = [decode(length) for length in range(100, 140)]
    pursued = pursue(workers, [*history[:25], TRIGGER, *history[25:]])
    assert pursued.history == (TRIGGER,)
    assert pursued.recurrence.way is Rerun.HISTORY
    assert pursued.recurrence.history == 1
    assert pursued.recurrence.failed == pursued.recurrence.runs


def test_a_history_of_two_cases_is_kept_in_order() -> None:
    second = decode(14)

    def fails(workers: FakeWorkers, _: Case) -> bool:
        return TRIGGER in workers.ran and second in workers.ran[workers.ran.index(TRIGGER) :]

    others = [decode(length) for length in range(100, 120)]
    assert pursue(FakeWorkers(fails), [*others, TRIGGER, *others, second]).history == (TRIGGER, second)


def test_a_history_is_cut_although_the_failure_does_not_always_follow_from_it() -> None:
    workers = FakeWorkers(lambda workers, _: TRIGGER in workers.ran and workers.chance.random() < 0.5)
    others = [decode(length) for length in range(100, 108)]
    pursued = pursue(workers, [*others, TRIGGER])
    assert TRIGGER in pursued.history
    assert len(pursued.history) <= 3


def test_a_failure_that_needs_load_is_shown_beside_other_workers() -> None:
    pursued = pursue(FakeWorkers(lambda workers, _: workers.beside > 2 and workers.chance.random() < 0.1))
    assert (pursued.recurrence.way, pursued.recurrence.load) == (Rerun.LOAD, 4)


def test_a_failure_that_needs_the_other_guard_is_filed_with_it() -> None:
    pursued = pursue(FakeWorkers(lambda _, case: case.guard is Guard.LEFT))
    assert pursued.case == replace(SUSPECT, guard=Guard.LEFT)
    assert pursued.recurrence.way is Rerun.GUARD


@pytest.mark.parametrize("late", [True, False])
def test_a_device_that_can_begin_late_does(late: bool) -> None:
    pursued = pursue(FakeWorkers(lambda _, case: case.pace is Pace.LATE), late=late)
    assert pursued.recurrence.seen_once is not late


@pytest.mark.parametrize("family", ["sparse", "states"])
def test_a_case_of_another_family_has_no_late_device(family: str) -> None:
    case = {"sparse": SPARSE, "states": STATES}[family]
    workers = FakeWorkers(lambda *_: False)
    pursued = Pursuit(workers, case, UNWRITTEN, (), Effort(20, 40.0), late=True, clock=lambda: workers.now).outcome()
    assert pursued.recurrence.seen_once


@pytest.mark.parametrize("kind", [Kind.ILLEGAL_ACCESS, Kind.MISALIGNED, Kind.WORKER_DIED, Kind.HANG])
@pytest.mark.parametrize("budget", [FULL, Effort(0, 0.0)])
def test_a_death_that_never_comes_back_is_filed_as_seen_once(kind: Kind, budget: Effort) -> None:
    pursued = pursue(FakeWorkers(lambda *_: False), observation=observed(kind), budget=budget)
    assert pursued.is_finding
    assert pursued.recurrence.seen_once
    assert pursued.recurrence.words.startswith("Seen once: it did not fail again. ")


def test_all_attempts_are_listed() -> None:
    words = pursue(FakeWorkers(lambda *_: False), [TRIGGER], late=True).recurrence.words
    assert all(f"runs failed, {way}" in words for way in Rerun)


@pytest.mark.parametrize("observation", [UNWRITTEN, observed(Kind.WORKER_DIED, KILLED)])
def test_another_failure_that_never_comes_back_is_none(observation: Observation) -> None:
    assert not pursue(FakeWorkers(lambda *_: False), observation=observation).is_finding


def test_a_budget_ends_it() -> None:
    by_count, by_time = FakeWorkers(lambda *_: False), FakeWorkers(lambda *_: False)
    pursue(by_count, budget=Effort(100, 1e9))
    pursue(by_time, budget=Effort(1_000_000, 2.0))
    assert by_count.runs <= 104
    assert by_time.now < 2.1


def test_a_statistical_failure_is_repeated_with_other_values() -> None:
    lucky = FakeWorkers(lambda _, case: case.seed == SUSPECT.seed, observed())
    assert not pursue(lucky, observation=observed()).is_finding


@pytest.mark.parametrize(("rate", "steady"), [(1.0, True), (0.3, False)])
def test_a_failure_that_recurred_by_chance_is_not_steady(rate: float, steady: bool) -> None:
    workers = FakeWorkers(at_random(rate))
    pursuit = Pursuit(workers, SUSPECT, UNWRITTEN, (), FULL, came_back=True, clock=lambda: workers.now)
    assert pursuit.is_steady() is steady


def test_a_mismatch_of_some_values_that_always_fails_with_its_own_is_steady() -> None:
    workers = FakeWorkers(lambda _, case: case.seed == SUSPECT.seed, observed())
    assert Pursuit(workers, SUSPECT, observed(), (), FULL, came_back=True, clock=lambda: workers.now).is_steady()


def test_whether_it_is_steady_needs_no_further_worker() -> None:
    workers = FakeWorkers(lambda *_: True)
    assert Pursuit(workers, SUSPECT, UNWRITTEN, (), FULL, came_back=True, clock=lambda: workers.now).is_steady()
    assert not workers.renewed


def test_a_failure_that_recurred_once_is_a_finding_with_one_failure() -> None:
    workers = FakeWorkers(lambda *_: False)
    pursuit = Pursuit(workers, SUSPECT, UNWRITTEN, (), Effort(50, 40.0), came_back=True, clock=lambda: workers.now)
    assert not pursuit.is_steady()
    pursued = pursuit.outcome()
    assert pursued.is_finding
    assert pursued.recurrence.failed == 1


@pytest.mark.parametrize("rate", [1 / 2, 1 / 17, 1 / 100])
def test_a_replay_fails_in_95_of_100(rate: float) -> None:
    workers = FakeWorkers(at_random(rate))
    recurrence = pursue(workers).recurrence
    shown = [
        show_again(workers, SUSPECT, UNWRITTEN, recurrence, seconds=1e9, clock=lambda: workers.now).failed
        for _ in range(100)
    ]
    assert sum(map(bool, shown)) >= 95


def test_a_replay_runs_the_history_first() -> None:
    workers = FakeWorkers(lambda workers, _: TRIGGER in workers.ran)
    recurrence = Recurrence(way=Rerun.HISTORY, runs=4, failed=4, history=1)
    shown = show_again(workers, SUSPECT, UNWRITTEN, recurrence, [TRIGGER], seconds=60)
    assert (shown.runs, shown.failed, shown.conclusive) == (1, 1, True)


def test_a_replay_that_is_out_of_time_says_so() -> None:
    workers = FakeWorkers(lambda *_: False)
    recurrence = Recurrence(way=Rerun.ALONE, runs=1000, failed=1)
    shown = show_again(workers, SUSPECT, UNWRITTEN, recurrence, seconds=1.0, clock=lambda: workers.now)
    assert not shown.conclusive
    assert shown.runs < 105


def test_a_replay_of_a_failure_seen_once_ends() -> None:
    recurrence = Recurrence(way=Rerun.ALONE, runs=1000, failed=0)
    shown = show_again(FakeWorkers(lambda *_: False), SUSPECT, FAULT, recurrence, seconds=60)
    assert (shown.runs, shown.failed) == (SEEN_ONCE_RUNS, 0)


@pytest.mark.parametrize(
    "damage", [{"failed": 9}, {"runs": -1}, {"load": 0}, {"load": 100_000}, {"history": 1 << 40}, {"way": "at night"}]
)
def test_a_damaged_record_is_refused(damage: dict[str, object]) -> None:
    whole = {"way": Rerun.ALONE, "runs": 8, "failed": 1}
    msgspec.convert(whole, Recurrence)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(whole | damage, Recurrence)
