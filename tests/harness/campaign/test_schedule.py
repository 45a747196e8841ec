"""Which slice comes next."""

import heapq
import math
from collections import Counter
from pathlib import Path

import pytest
from campaign_events import slice_finished
from fake_campaign import plan

from attnfuzz.harness.campaign.events import CoverageGrew, Event, Progress, SliceStarted
from attnfuzz.harness.campaign.schedule import EXAMPLES_PER_SLICE, Schedule
from attnfuzz.harness.search.examples import derive_seed
from attnfuzz.harness.search.messages import Slice, SliceKind, Tally


def events_of(task: Slice, *, searched: int | None = None, pairs: int = 0, seconds: float = 1.0) -> list[Event]:
    """What happens when a slice runs to its end."""
    done = task.examples if searched is None else searched
    backend = task.backend
    reached = tuple((f"pair {number}", backend) for number in range(pairs))
    return [
        SliceStarted(at=0.0, backend=backend, job=0, index=task.index, seed=task.seed, examples=task.examples),
        CoverageGrew(at=0.0, backend=backend, searched=done, pairs=reached),
        Progress(at=0.0, backend=backend, tally=Tally(searched=done, cases=done, deaths=0)),
        slice_finished(backend, index=task.index, seed=task.seed, examples=done, cases=done, seconds=seconds),
    ]


def run(schedule: Schedule, most: int = 100, yields: dict[str, int] | None = None) -> list[Slice]:
    """The slices that are handed out one after the other."""
    tasks: list[Slice] = []
    while len(tasks) < most and (task := schedule.next_slice([], {})) is not None:
        tasks.append(task)
        for event in events_of(task, pairs=(yields or {}).get(task.backend, 0)):
            schedule(event)
    return tasks


def job_time(costs: dict[str, float], *, jobs: int, seconds: float, longest: float = math.inf) -> dict[str, float]:
    """The time that each backend gets of so many jobs, if an example takes so long, and a slice `longest` at the most.

    The time passes in `at` alone. Each backend reaches many pairs at first, and fewer and fewer.
    """
    schedule = Schedule(list(costs), examples=None, seed=0)
    used, reached = dict.fromkeys(costs, 0.0), Counter[str]()
    running: dict[int, tuple[Slice, float]] = {}
    free = [(0.0, job) for job in range(jobs)]
    while free:
        at, job = heapq.heappop(free)
        if job in running:
            task, since = running.pop(job)
            used[task.backend] += at - since
            reached[task.backend] += 1
            for event in events_of(task, pairs=500 // reached[task.backend] ** 2, seconds=at - since):
                schedule(event)
        following = schedule.next_slice([(task.backend, at - since) for task, since in running.values()], {})
        assert following is not None
        if at < seconds:
            running[job] = following, at
            ends = at + min(costs[following.backend] * following.examples, longest)
            heapq.heappush(free, (min(ends, seconds), job))
    return used


def test_backends_take_turns() -> None:
    tasks = run(Schedule(["a", "b"], examples=None, seed=0), most=4)
    assert [(task.backend, task.index) for task in tasks] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_each_backend_gets_its_examples_and_no_more_whatever_it_yields() -> None:
    tasks = run(Schedule(["a", "b"], examples=4 * EXAMPLES_PER_SLICE + 1, seed=0), yields={"a": 50})
    assert [task.backend for task in tasks] != ["a", "b"] * 5
    for backend in "ab":
        own = [task.examples for task in tasks if task.backend == backend]
        assert own == [*[EXAMPLES_PER_SLICE] * 4, 1]


def judged_of(examples: int, *, one_in: int) -> Counter[str]:
    """The cases that are judged and not, of a backend that supports one case in so many."""
    schedule = Schedule(["fake"], examples=examples, seed=0)
    seen, drawn = Counter[str](), 0
    while (task := schedule.next_slice([], {})) is not None:
        numbers = range(drawn, drawn + task.examples)
        drawn += task.examples
        judged = sum(number % one_in == one_in - 1 for number in numbers)
        tally = Tally(searched=judged, unsupported=task.examples - judged, cases=judged)
        schedule(SliceStarted(at=0.0, backend="fake", job=0, index=task.index, seed=task.seed, examples=task.examples))
        schedule(Progress(at=0.0, backend="fake", tally=tally))
        seen.update(judged=judged, unsupported=task.examples - judged)
    return seen


def test_examples_are_judged_cases_and_unsupported_ones_are_drawn_in_addition() -> None:
    assert judged_of(1500, one_in=1) == {"judged": 1500, "unsupported": 0}
    seen = judged_of(1500, one_in=3)
    assert seen["judged"] == 1500
    assert seen["unsupported"] == 2 * 1500


def test_a_backend_that_supports_hardly_any_case_is_given_up() -> None:
    assert judged_of(300, one_in=10**9)["unsupported"] == 300
    seen = judged_of(300, one_in=50)
    assert 0 < seen["judged"] < 300
    assert seen["unsupported"] < 1000


def test_new_coverage_brings_a_backend_more_of_the_time() -> None:
    tasks = run(Schedule(["a", "b"], examples=None, seed=0), most=40, yields={"b": 50})
    assert sum(task.backend == "b" for task in tasks) > 25


@pytest.mark.parametrize("jobs", [1, 4, 16])
def test_each_backend_has_half_an_even_share_whatever_the_others_take(tmp_path: Path, jobs: int) -> None:
    costs = {**{f"fast{number}": 0.02 + 0.005 * number for number in range(14)}, "slow": 1.0, "slower": 2.0}
    asked = plan(tmp_path, examples=None, seconds=240.0, backends=tuple(costs), jobs=jobs)
    used = job_time(costs, jobs=jobs, seconds=240.0, longest=asked.seconds_per_slice or math.inf)
    even = 240.0 * jobs / len(costs)
    assert min(used.values()) > 0.5 * even
    assert max(used.values()) < 2.0 * even


def test_kept_cases_cost_a_backend_nothing_and_suspects_do() -> None:
    for kind, first in ((SliceKind.KEPT, "a"), (SliceKind.ONCE_MORE, "b")):
        schedule = Schedule(["a", "b"], examples=None, seed=0)
        schedule(slice_finished("a", kind=kind, index=None, examples=0, cases=9, seconds=9.0))
        task = schedule.next_slice([], {})
        assert task is not None
        assert task.backend == first


def test_examples_that_a_slice_left_are_handed_out_again() -> None:
    schedule = Schedule(["a"], examples=10, seed=0)
    first = schedule.next_slice([], {})
    assert first is not None
    for event in events_of(first, searched=6):
        schedule(event)
    again = schedule.next_slice([], {})
    assert again is not None
    assert (again.examples, again.index) == (4, 1)


def test_reserved_examples_are_not_handed_out() -> None:
    schedule = Schedule(["a"], examples=10, seed=0)
    assert schedule.next_slice([], {"a": 10}) is None
    some = schedule.next_slice([], {"a": 7})
    assert some is not None
    assert some.examples == 3


def test_seeds_follow_from_the_campaigns_seed() -> None:
    def seeds(seed: int) -> list[int]:
        return [task.seed for task in run(Schedule(["a", "b"], examples=None, seed=seed), most=6)]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == 12


def test_the_slices_of_one_backend_have_seeds_of_their_own() -> None:
    tasks = run(Schedule(["a"], examples=600, seed=3))
    assert [(task.index, task.examples) for task in tasks] == [(0, 250), (1, 250), (2, 100)]
    assert [task.seed for task in tasks] == [derive_seed(3, "a", index) for index in range(3)]
