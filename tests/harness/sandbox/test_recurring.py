"""Histories and runs at the same time, in real workers, and failures that come and go in them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness_cases import decode_case
from msgspec.structs import replace

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.sandbox.pursuit import Effort, Pursuit
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.recurrence import Rerun
from attnfuzz.reference.case import Case

# Processes are what is tested: what a worker has run, what several do at the same time.
pytestmark = pytest.mark.slow

INTERMITTENT = Path(__file__).parents[2] / "fakes" / "intermittent_backend.py"


@pytest.fixture(scope="module")
def own_runner() -> Iterator[Runner]:
    """A runner whose history is this module's alone."""
    with Runner() as runner:
        yield runner


def numbered(backend: str, count: int) -> list[Case]:
    return [decode_case(backend, seed=seed) for seed in range(1, count + 1)]


def test_a_history_is_that_of_the_worker_of_the_last_case(own_runner: Runner, defective: str) -> None:
    own_runner.renew()
    cases = numbered(f"{defective}:NONE", 3)
    for case in cases:
        own_runner.verdict(case)
    assert own_runner.history == tuple(cases[:2])
    own_runner.renew()
    own_runner.verdict(cases[0])
    assert own_runner.history == ()


def test_a_death_has_the_history_of_the_worker_that_died(own_runner: Runner, defective: str) -> None:
    own_runner.renew()
    case = decode_case(f"{defective}:NONE")
    own_runner.verdict(case)
    deadly = replace(case, backend=f"{defective}:SEGFAULT")
    assert own_runner.verdict(deadly).failures
    assert own_runner.history == (case,)
    own_runner.verdict(case)
    assert not own_runner.history


def test_cases_run_at_the_same_time_have_their_verdicts_in_order(own_runner: Runner, defective: str) -> None:
    good = decode_case(f"{defective}:LUCKY_NAN", seed=1)
    bad = replace(good, seed=7)
    for _ in range(2):
        verdicts = own_runner.together([good, bad, good, bad])
        assert [bool(verdict.failures) for verdict in verdicts] == [False, True, False, True]


def test_workers_that_die_beside_others_are_replaced(own_runner: Runner, defective: str) -> None:
    deadly = decode_case(f"{defective}:SEGFAULT")
    for _ in range(2):
        kinds = [verdict.failures[0].kind for verdict in own_runner.together([deadly] * 3)]
        assert kinds == [Kind.ILLEGAL_ACCESS] * 3
    own_runner.renew()
    assert not own_runner.verdict(replace(deadly, backend=f"{defective}:NONE")).failures


def test_an_unsupported_case_is_run_by_no_worker_of_several(own_runner: Runner, defective: str) -> None:
    (verdict,) = own_runner.together([replace(decode_case(f"{defective}:NONE"), backend="trtllm_mla")])
    assert verdict.unsupported is not None


def pursued(runner: Runner, name: str, kind: Kind, *history: Case, place: str = "out") -> Pursuit:
    case = decode_case(f"{INTERMITTENT}:{name}")
    observation = next(
        found
        for verdict in (runner.verdict(case) for _ in range(2000))
        for found in verdict.failures
        if found.kind is kind and found.place == place
    )
    return Pursuit(runner, case, observation, history, Effort(2000, 30.0))


@pytest.mark.parametrize(
    ("name", "kind", "place"), [("NAN", Kind.NOT_FINITE, "out"), ("FAULT", Kind.ILLEGAL_ACCESS, "query")]
)
def test_a_failure_of_every_17th_launch_has_that_rate(own_runner: Runner, name: str, kind: Kind, place: str) -> None:
    own_runner.renew()
    recurrence = pursued(own_runner, f"EVERY_17_{name}", kind, place=place).outcome().recurrence
    assert recurrence.way is Rerun.ALONE
    assert recurrence.interval[0] <= 1 / 17 <= recurrence.interval[1]


def test_a_failure_caused_by_an_earlier_case_is_filed_with_it(own_runner: Runner) -> None:
    backend = f"{INTERMITTENT}:AFTER_1_NAN"
    many = decode_case(backend, *range(1, 9))
    others = [decode_case(backend, length) for length in (3, 4, 5)]
    own_runner.renew()
    own_runner.verdict(many)
    found = pursued(own_runner, "AFTER_1_NAN", Kind.NOT_FINITE, *others, many, *others).outcome()
    assert found.history == (many,)
    assert found.recurrence.failed == found.recurrence.runs
