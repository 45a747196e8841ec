"""Cases in which a known cause would kill another worker: how many of them are run."""

import itertools
import random
import time
from collections.abc import Callable

import pytest
from fake_search import FakeJudge, decode, hunt, kv_lens, observed
from msgspec.structs import replace

from attnfuzz.harness.search.deadly import LEAST_DEATHS, MOST_TIME, SECONDS_PER_DEATH, KnownDeaths
from attnfuzz.harness.search.known import KnownCause, Showing
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import KvLayout

NEEDS = ("empty KV",)
DIED, PASSED = Verdict(observations=(observed(Kind.ILLEGAL_ACCESS),)), Verdict()


def run(
    deaths: KnownDeaths, *, death: float, odds: float = 1.0, marked: float = 0.2, cases: int = 2000
) -> tuple[int, int, float]:
    """Run cases of one second, some of which have the marks of a cause that kills a worker at these odds.

    A death takes `death` seconds more, half of them in the next case. Returns the marked cases that were run and those
    that were skipped, and the share of the time that deaths took.
    """
    source = random.Random(1)
    ran = skipped = 0
    lost = waits = 0.0
    for _ in range(cases):
        expected = [NEEDS] if source.random() < marked else []
        if deaths.skips(expected):
            skipped += 1
            continue
        ran += bool(expected)
        died = bool(expected) and source.random() < odds
        extra, waits = waits + died * death / 2, died * death / 2
        deaths.note(expected, DIED if died else PASSED, 1.0 + extra)
        lost += extra
    return ran, skipped, lost / (lost + cases - skipped)


@pytest.mark.parametrize("odds", [1.0, 0.2])
@pytest.mark.parametrize("death", [20.0, 200.0])
def test_expensive_deaths_take_a_share_of_the_time(death: float, odds: float) -> None:
    ran, skipped, share = run(KnownDeaths(Device.CPU), death=death, odds=odds, cases=10_000)
    assert skipped > ran > LEAST_DEATHS
    assert share == pytest.approx(MOST_TIME, abs=0.05)


def test_a_death_on_a_gpu_costs_others_even_if_its_own_job_has_a_spare() -> None:
    ran, skipped, _ = run(KnownDeaths(Device.CUDA), death=0.0, cases=10_000)
    assert ran * SECONDS_PER_DEATH[Device.CUDA] == pytest.approx(
        MOST_TIME / (1 - MOST_TIME) * (10_000 - skipped), rel=0.1
    )


@pytest.mark.parametrize(
    ("death", "odds", "marked"),
    [(1.0, 1.0, 0.2), (200.0, 1.0, 0.0005), (200.0, 0.02, 0.5)],
    ids=["cheap", "rare", "a cause that seldom kills"],
)
def test_other_deaths_are_not_avoided(death: float, odds: float, marked: float) -> None:
    ran, skipped, _ = run(KnownDeaths(Device.CPU), death=death, odds=odds, marked=marked)
    assert skipped <= 0.01 * ran


def test_a_bug_that_is_fixed_meanwhile_is_run_again() -> None:
    deaths = KnownDeaths(Device.CPU)
    run(deaths, death=200.0)
    run(deaths, death=200.0, odds=0.0, cases=100_000)
    ran, skipped, _ = run(deaths, death=200.0, odds=0.0)
    assert ran > 0
    assert not skipped


def cause_of_deaths() -> KnownCause:
    died = Fingerprint.of("fake", observed(Kind.ILLEGAL_ACCESS))
    return KnownCause(name="known", case=decode(0), fingerprint=died, needs=NEEDS)


def also_wrong() -> KnownCause:
    wrong = KnownCause(name="known", case=decode(3), fingerprint=Fingerprint.of("fake", observed()), needs=("sinks",))
    died = Fingerprint.of("fake", observed(Kind.ILLEGAL_ACCESS))
    return wrong.also_by(Showing(case=decode(0), fingerprint=died, needs=NEEDS))


def known_in_part() -> KnownCause:
    """Its case has another clue, which it may not need."""
    case = decode(0)
    nhd = replace(case, geometry=replace(case.geometry, kv_layout=KvLayout.NHD))
    return replace(cause_of_deaths(), case=nhd, ablated=False)


def never_died() -> KnownCause:
    return KnownCause(name="known", case=decode(0), fingerprint=Fingerprint.of("fake", observed()), needs=NEEDS)


def of_unknown_needs() -> KnownCause:
    died = Fingerprint.of("fake", observed(Kind.ILLEGAL_ACCESS))
    return KnownCause(name="known", case=decode(0), fingerprint=died, ablated=False)


class DyingSlowly(FakeJudge):
    """A judge whose workers die on empty KV, and take ten seconds of `clock` for it."""

    def __init__(self) -> None:
        self.clock = itertools.count()
        super().__init__(self._fail)

    def _fail(self, lengths: list[int]) -> tuple[Observation, ...]:
        if 0 not in lengths:
            return ()
        for _ in range(10):
            next(self.clock)
        return (observed(Kind.ILLEGAL_ACCESS),)


@pytest.mark.parametrize(
    ("cause", "skips"),
    [
        (cause_of_deaths, True),
        (also_wrong, True),
        (known_in_part, True),
        (never_died, False),
        (of_unknown_needs, False),
    ],
)
def test_drawn_cases_of_known_deaths_are_skipped(
    cause: Callable[[], KnownCause], monkeypatch: pytest.MonkeyPatch, *, skips: bool
) -> None:
    judge, deaths = DyingSlowly(), KnownDeaths(Device.CPU)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(judge.clock)))
    known = Fingerprint.of("fake", observed(Kind.ILLEGAL_ACCESS))
    skipped = []
    for seed in range(3):
        done, _ = hunt(judge, deaths=deaths, known=(known,), causes=(cause(),), seed=seed)
        assert done.tally.searched + done.tally.skipped == 200
        skipped.append(done.tally.skipped)
    empty = sum(0 in kv_lens(case) for case in judge.judged)
    if skips:
        # What a slice has learned holds for the next.
        assert 0 < skipped[0] <= min(skipped[1:]) + LEAST_DEATHS
        assert empty > LEAST_DEATHS
    else:
        assert not any(skipped)
