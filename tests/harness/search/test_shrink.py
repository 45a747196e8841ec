"""Shrinking pins the first failure, keeps within its budget, and asks often where one run does not tell."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from harness_cases import CALLS, decode_case
from msgspec.structs import replace

from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.shrink import SMALLER, CaseRejected, shrink
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Guard, Mode
from attnfuzz.reference.device import Device

BUDGET = ShrinkBudget(runs=500, seconds=1e9)
LARGE = decode_case("trtllm_mha", 6, 0, 30, 17)


class Judge:
    """Judges cases by a function of the longest KV length, and counts."""

    def __init__(self, judged: Callable[[int], tuple[Kind, ...]], shows: Iterator[bool] | None = None) -> None:
        self._judged = judged
        self._shows = shows
        self.seen: list[AnyCase] = []
        self.renewed = 0

    def verdict(self, case: AnyCase) -> Verdict:
        self.seen.append(case)
        assert isinstance(case, Case)
        longest = max((request.kv_len for step in case.steps for request in step.requests), default=0)
        kinds = self._judged(longest) if self._shows is None or next(self._shows) else ()
        return Verdict(observations=tuple(Observation(kind=kind, place="out", message="") for kind in kinds))

    def renew(self) -> None:
        self.renewed += 1


def long_ones(longest: int) -> tuple[Kind, ...]:
    return (Kind.UNWRITTEN,) if longest > 10 else ()


def longest_of(case: AnyCase) -> int:
    assert isinstance(case, Case)
    return max(request.kv_len for step in case.steps for request in step.requests)


def test_the_smallest_case_that_fails_alike_is_confirmed_in_a_fresh_worker() -> None:
    judge = Judge(long_ones)
    shrunk = shrink(LARGE, judge, budget=BUDGET)
    assert shrunk is not None
    assert longest_of(shrunk.case) == 11
    assert shrunk.steady
    assert judge.renewed == 1
    assert judge.seen[-1] == shrunk.case
    assert shrunk.runs == len(judge.seen)


def test_another_failure_is_not_slid_into() -> None:
    def two_bugs(longest: int) -> tuple[Kind, ...]:
        return (Kind.UNWRITTEN,) if longest > 10 else (Kind.HANG,)

    shrunk = shrink(LARGE, Judge(two_bugs), budget=BUDGET)
    assert shrunk is not None
    assert shrunk.observation.kind is Kind.UNWRITTEN
    assert longest_of(shrunk.case) == 11


def test_a_failure_that_comes_second_still_counts() -> None:
    def joined(longest: int) -> tuple[Kind, ...]:
        return (Kind.UNWRITTEN,) if longest > 20 else (Kind.HANG, Kind.UNWRITTEN) if longest > 10 else ()

    shrunk = shrink(LARGE, Judge(joined), budget=BUDGET)
    assert shrunk is not None
    assert longest_of(shrunk.case) == 11
    assert shrunk.observation.kind is Kind.UNWRITTEN


def test_a_passing_case_is_not_shrunk() -> None:
    assert shrink(LARGE, Judge(lambda _: ()), budget=BUDGET) is None


def test_a_rejected_case_is_reported() -> None:
    class Rejecting(Judge):
        def verdict(self, case: AnyCase) -> Verdict:
            del case
            return Verdict(unsupported="no such window")

    with pytest.raises(CaseRejected, match="no such window"):
        shrink(LARGE, Rejecting(long_ones), budget=BUDGET, repeat=3)


def test_the_budget_bounds_the_runs() -> None:
    judge = Judge(long_ones)
    shrunk = shrink(LARGE, judge, budget=ShrinkBudget(runs=4, seconds=1e9))
    assert shrunk is not None
    # The first one, at most four, and one in a fresh worker.
    assert len(judge.seen) <= 6
    assert long_ones(longest_of(shrunk.case))


def test_nothing_is_made_or_run_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AnyCase] = []
    monkeypatch.setattr(Capability, "why_not", lambda _, case: made.append(case))
    judge = Judge(long_ones)
    shrunk = shrink(LARGE, judge, budget=ShrinkBudget(runs=500, seconds=0))
    assert shrunk is not None
    assert shrunk.case == LARGE
    # The first run, and one in a fresh worker.
    assert judge.seen == [LARGE, LARGE]
    assert not made


def test_a_flaky_failure_is_repeated_often() -> None:
    def every_third() -> Iterator[bool]:
        while True:
            yield from (False, False, True)

    shrunk = shrink(LARGE, Judge(long_ones, every_third()), budget=BUDGET, repeat=3)
    assert shrunk is not None
    assert longest_of(shrunk.case) == 11
    assert shrink(LARGE, Judge(long_ones, every_third()), budget=BUDGET) is None


def test_a_failure_that_never_recurs_is_reported() -> None:
    def once() -> Iterator[bool]:
        yield True
        while True:
            yield False

    shrunk = shrink(LARGE, Judge(long_ones, once()), budget=BUDGET)
    assert shrunk is not None
    assert shrunk.case == LARGE
    assert not shrunk.steady


def test_the_same_case_becomes_the_same() -> None:
    first, second = (shrink(LARGE, Judge(long_ones), budget=BUDGET) for _ in range(2))
    assert first == second


class AlwaysHanging(Judge):
    """Whatever it judges hangs."""

    def verdict(self, case: AnyCase) -> Verdict:
        self.seen.append(case)
        return Verdict(observations=(Observation(kind=Kind.HANG, place="", message=""),))


def test_calls_are_shrunk_too() -> None:
    shrunk = shrink(replace(CALLS, guard=Guard.LEFT), AlwaysHanging(long_ones), budget=BUDGET)
    assert shrunk is not None
    assert shrunk.case == CALLS


def test_where_calls_came_from_stays_known() -> None:
    imported = replace(CALLS, notes=("the pool had 900 pages",))
    first = shrink(replace(imported, guard=Guard.LEFT), AlwaysHanging(long_ones), budget=BUDGET)
    assert first is not None
    assert first.case == replace(imported, notes=(*imported.notes, SMALLER))
    for case, notes in ((imported, imported.notes), (replace(first.case, guard=Guard.LEFT), first.case.notes)):
        again = shrink(case, AlwaysHanging(long_ones), budget=BUDGET)
        assert again is not None
        assert again.case == replace(CALLS, notes=notes)


@pytest.mark.parametrize(
    ("device", "asked", "kept"),
    [(Device.CPU, False, False), (Device.CPU, True, True), (Device.CUDA, False, True)],
)
def test_calls_on_a_gpu_s_kernels_keep_their_shape_unasked(
    monkeypatch: pytest.MonkeyPatch, device: Device, *, asked: bool, kept: bool
) -> None:
    seen = []

    def reduced(case: AnyCase, *_: object, same_kernels: bool, **__: object) -> AnyCase:
        seen.append(same_kernels)
        return case

    backend = SimpleNamespace(capability=Capability(modes=Mode.of_kernels(), device=device))
    monkeypatch.setattr("attnfuzz.harness.search.shrink.resolve", lambda _: backend)
    monkeypatch.setattr("attnfuzz.harness.search.shrink.reduce_calls", reduced)
    shrink(CALLS, AlwaysHanging(long_ones), budget=BUDGET, same_kernels=asked)
    assert seen == [kept]


class KeepsLength:
    """Keeps the length of the first step that its worker runs, and fails at a longer one."""

    def __init__(self) -> None:
        self._kept: int | None = None

    def verdict(self, case: AnyCase) -> Verdict:
        assert isinstance(case, Case)
        for at, each in enumerate(case.steps):
            longest = max(request.kv_len for request in each.requests)
            self._kept = longest if self._kept is None else self._kept
            if longest > self._kept:
                return Verdict(observations=(Observation(kind=Kind.UNWRITTEN, place="out", message="", step=at),))
        return Verdict()

    def renew(self) -> None:
        self._kept = None


def test_a_backend_that_keeps_state_runs_each_smaller_case_in_a_fresh_worker() -> None:
    steps = tuple(decode_case("trtllm_mha", *lengths).steps[0] for lengths in ((7, 5), (6, 3), (30, 17), (31,)))
    shrunk = shrink(replace(LARGE, steps=steps), KeepsLength(), budget=BUDGET)
    assert shrunk is not None
    assert isinstance(shrunk.case, Case)
    lengths = [[request.kv_len for request in each.requests] for each in shrunk.case.steps]
    assert len(lengths) == 2
    assert max(lengths[1]) == max(lengths[0]) + 1
