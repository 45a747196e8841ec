"""Cases like those that killed workers before: how many of them are run."""

from collections.abc import Callable

import pytest
from fake_search import FakeJudge, decode, hunt, kv_lens, observed

from attnfuzz.harness.search.deadly import LEAST_RUNS, TURNS, KnownDeaths
from attnfuzz.harness.search.known import KnownCause, Showing
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.device import Device

NEEDS = ("empty KV",)


def known(kind: Kind) -> KnownCause:
    return KnownCause(name="known", case=decode(0), fingerprint=Fingerprint.of("fake", observed(kind)), needs=NEEDS)


def fails(kind: Kind, where: Callable[[list[int]], bool]) -> Callable[[list[int]], tuple[Observation, ...]]:
    return lambda lengths: (observed(kind),) if where(lengths) else ()


def searched(
    judge: FakeJudge, cause: KnownCause, deaths: KnownDeaths, *, times: int = 1, seed: int = 1
) -> tuple[int, int, int]:
    """The cases without empty KV that were run, those with it, and those that were skipped."""
    skipped = 0
    for index in range(times):
        done, _ = hunt(judge, deaths=deaths, known=(cause.fingerprint,), causes=(cause,), seed=seed + index)
        skipped += done.tally.skipped
        assert done.tally.searched + done.tally.skipped == 200
    empty = sum(0 in kv_lens(case) for case in judge.judged)
    return len(judge.judged) - empty, empty, skipped


def has_empty(lengths: list[int]) -> bool:
    return 0 in lengths


@pytest.mark.parametrize(
    ("device", "kind"),
    [(Device.CPU, Kind.HANG), (Device.CUDA, Kind.HANG), (Device.CUDA, Kind.ILLEGAL_ACCESS)],
)
def test_one_case_in_eight_is_run_where_a_known_cause_killed_workers(device: Device, kind: Kind) -> None:
    judge = FakeJudge(fails(kind, has_empty))
    _, empty, skipped = searched(judge, known(kind), KnownDeaths(device), times=3)
    assert skipped > TURNS
    assert empty == LEAST_RUNS + (empty - LEAST_RUNS + skipped) // TURNS


def test_deaths_are_remembered_from_slice_to_slice() -> None:
    deaths = KnownDeaths(Device.CUDA)
    searched(FakeJudge(fails(Kind.WORKER_DIED, has_empty)), known(Kind.WORKER_DIED), deaths)
    judge = FakeJudge(fails(Kind.WORKER_DIED, has_empty))
    _, empty, skipped = searched(judge, known(Kind.WORKER_DIED), deaths, seed=7)
    assert empty <= (empty + skipped) // TURNS + 1


def test_a_finding_that_died_is_enough() -> None:
    died = Fingerprint.of("fake", observed(Kind.ILLEGAL_ACCESS))
    wrong = KnownCause(name="known", case=decode(3), fingerprint=Fingerprint.of("fake", observed()), needs=("sinks",))
    cause = wrong.also_by(Showing(case=decode(0), fingerprint=died, needs=NEEDS))
    judge = FakeJudge(fails(Kind.ILLEGAL_ACCESS, has_empty))
    done, _ = hunt(judge, deaths=KnownDeaths(Device.CUDA), known=(died,), causes=(cause,), examples=600)
    assert done.tally.skipped


@pytest.mark.parametrize(
    ("device", "kind", "where"),
    [
        (Device.CPU, Kind.ILLEGAL_ACCESS, has_empty),
        (Device.CUDA, Kind.OUTPUT_MISMATCH, has_empty),
        (Device.CUDA, Kind.ILLEGAL_ACCESS, lambda lengths: lengths[0] == 0 and len(lengths) > 4),
        (Device.CUDA, Kind.ILLEGAL_ACCESS, lambda _: False),
    ],
    ids=["a death on a CPU", "no death", "a death of a few of them", "a bug that is fixed"],
)
def test_all_cases_are_run(device: Device, kind: Kind, where: Callable[[list[int]], bool]) -> None:
    judge = FakeJudge(fails(kind, where))
    _, empty, skipped = searched(judge, known(kind), KnownDeaths(device), times=3)
    assert empty > LEAST_RUNS
    assert not skipped


def test_a_cause_whose_needs_are_unknown_skips_nothing() -> None:
    cause = KnownCause(
        name="known", case=decode(0), fingerprint=Fingerprint.of("fake", observed(Kind.HANG)), ablated=False
    )
    judge = FakeJudge(fails(Kind.HANG, has_empty))
    assert searched(judge, cause, KnownDeaths(Device.CPU), times=3)[2] == 0
