"""What is counted of a slice: every run once, and soon."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_search import FakeJudge, decode, hunt, kv_lens, observed

from attnfuzz.harness.search import tally as tally_module
from attnfuzz.harness.search.messages import SliceDone, Tally
from attnfuzz.harness.search.tally import CountingRunner
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.reference.case import Case


class CountingJudge(FakeJudge):
    """Each case has as many rows as requests, takes a second of each phase, and has its longest KV for a margin."""

    def verdict(self, case: Case) -> Verdict:
        observations = super().verdict(case).observations
        lengths = kv_lens(case)
        margins = {"T1": max(lengths) / 1000, "T2": min(lengths) / 1000}
        return Verdict(observations=observations, rows=len(lengths), margins=margins, seconds={"place": 1.0})


def dies_on_long(lengths: list[int]) -> tuple[Observation, ...]:
    return (observed(Kind.WORKER_DIED, ""),) if max(lengths) >= 150 else ()


def differs_on_long(lengths: list[int]) -> tuple[Observation, ...]:
    return (observed(),) if max(lengths) >= 150 else ()


def counted(judge: FakeJudge, **task: Any) -> tuple[SliceDone, list[Tally]]:
    done, sent = hunt(judge, **task)
    return done, [message for message in sent if isinstance(message, Tally)]


@pytest.fixture(params=[0.0, 1e9], ids=["often", "at the end"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_module, "SECONDS_PER_TALLY", request.param)


@pytest.mark.usefixtures("pace")
@pytest.mark.parametrize("fails", [lambda _: (), differs_on_long, dies_on_long])
def test_tallies_sum_up_to_the_cases_that_were_run(fails: Callable[[list[int]], tuple[Observation, ...]]) -> None:
    judge = CountingJudge(fails)
    done, tallies = counted(judge)
    ran = [*judge.judged, *judge.confirmed]
    assert sum(tally.cases for tally in tallies) == done.tally.cases == len(ran)
    assert sum(tally.rows for tally in tallies) == sum(len(kv_lens(case)) for case in ran)
    assert sum(tally.phases["place"] for tally in tallies) == len(ran)
    assert sum(tally.searched for tally in tallies) == done.tally.searched
    assert sum(tally.deaths for tally in tallies) == done.tally.deaths
    assert done.tally.deaths == (sum(bool(fails(kv_lens(case))) for case in ran) if fails is dies_on_long else 0)


def test_a_repeated_run_is_no_example() -> None:
    judge = CountingJudge(differs_on_long)
    done, tallies = counted(judge, seed=3)
    assert done.tally.searched < done.tally.cases
    assert sum(tally.searched for tally in tallies) == done.tally.searched


@pytest.mark.usefixtures("pace")
def test_margins_are_the_largest_of_the_cases_without_failures() -> None:
    judge = CountingJudge(differs_on_long)
    _, tallies = counted(judge)
    passed = [kv_lens(case) for case in (*judge.judged, *judge.confirmed) if not differs_on_long(kv_lens(case))]
    assert max(tally.margins.get("T1", 0.0) for tally in tallies) == max(map(max, passed)) / 1000
    assert max(tally.margins.get("T2", 0.0) for tally in tallies) == max(map(min, passed)) / 1000
    of_dtype = sum(tallies, start=Tally()).dtypes
    assert of_dtype.keys() == {judge.judged[0].geometry.dtype}
    assert next(iter(of_dtype.values())).margins["T1"] == max(map(max, passed)) / 1000
    assert next(iter(of_dtype.values())).rows == sum(map(len, passed))


def test_a_tally_follows_the_first_case_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=0.05)  # two looks per case
    monkeypatch.setattr(tally_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    sent: list[Tally] = []
    judge = CountingRunner(FakeJudge(lambda _: ()), sent.append)
    for length in range(12):
        judge.search(decode(length))
    assert [tally.cases for tally in sent] == [3, 3, 3, 3]


def test_a_case_that_breaks_the_judge_is_not_counted() -> None:
    class Broken(FakeJudge):
        def verdict(self, case: Case) -> Verdict:
            if len(self.judged) == 3:
                raise RuntimeError("the nursery is gone")
            return super().verdict(case)

    sent: list[Tally] = []
    judge = CountingRunner(Broken(lambda _: ()), sent.append)
    for length in range(3):
        judge.search(decode(length))
    with pytest.raises(RuntimeError):
        judge.search(decode(3))
    judge.flush()
    judge.flush()
    assert [(tally.searched, tally.cases) for tally in sent] == [(3, 3)]


def test_tallies_are_added() -> None:
    first = Tally(searched=1, cases=2, deaths=1, rows=3, shrinking=True, margins={"T1": 0.5}, phases={"judge": 1.0})
    later = Tally(cases=1, rows=4, margins={"T1": 0.25, "T4": 0.75}, phases={"judge": 0.5, "kernels": 2.0})
    assert first + later == Tally(
        searched=1,
        cases=3,
        deaths=1,
        rows=7,
        shrinking=False,
        margins={"T1": 0.5, "T4": 0.75},
        phases={"judge": 1.5, "kernels": 2.0},
    )
    assert Tally() + first == first
