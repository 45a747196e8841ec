"""What the same case in several processes, and again in one of them, says: with verdicts made up."""

from collections.abc import Callable, Iterator

import pytest
from harness_cases import decode_case

from attnfuzz.harness.triage.repeats import AFTER_A_HANG, Repeated, repeated
from attnfuzz.harness.triage.result import Repetition
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase

PASSES = Verdict()


def fails(kind: Kind = Kind.OUTPUT_MISMATCH, place: str = "out", message: str = "0.1 instead of 0.2") -> Verdict:
    return Verdict(observations=(Observation(kind=kind, place=place, message=message, kernel="decode"),))


class Scripted:
    """Gives one verdict after another; `renewed` counts the fresh workers."""

    def __init__(self, verdict_of: Callable[[], Verdict]) -> None:
        self._verdict_of = verdict_of
        self.runs = self.renewed = 0

    def verdict(self, case: AnyCase, backend: str | None = None) -> Verdict:
        self.runs += 1
        return self._verdict_of()

    def trace(self, case: AnyCase) -> tuple[Verdict, CallCase | None]:
        raise AssertionError(case)

    def renew(self) -> None:
        self.renewed += 1


def sent(*verdicts: Verdict, repeats: int = 3) -> tuple[Repeated, Scripted]:
    script: Iterator[Verdict] = iter(verdicts)
    runner = Scripted(lambda: next(script))
    return repeated(decode_case("trtllm_mha"), runner, repeats), runner


@pytest.mark.parametrize(
    ("verdicts", "repetition"),
    [
        ([PASSES] * 6, Repetition.DETERMINISTIC),
        ([fails()] * 6, Repetition.DETERMINISTIC),
        ([fails(), PASSES, fails(), fails(), fails(), fails()], Repetition.RACING),
        ([PASSES] * 5 + [fails()], Repetition.RACING),
        ([fails(message="0.3 instead of 0.2"), *[fails()] * 5], Repetition.RACING),
        ([fails(Kind.NONDETERMINISTIC)] * 6, Repetition.RACING),
        ([PASSES] * 3 + [fails()] * 3, Repetition.HISTORY),
        ([fails()] * 3 + [PASSES] * 3, Repetition.HISTORY),
    ],
)
def test_runs_in_fresh_processes_and_in_a_used_one_tell_a_race_from_history(
    verdicts: list[Verdict], repetition: Repetition
) -> None:
    runs, runner = sent(*verdicts)
    assert runs.repetition is repetition
    assert (runner.runs, runner.renewed) == (6, 3)


def test_where_a_fault_lands_is_chance_and_no_race() -> None:
    places = [fails(Kind.ILLEGAL_ACCESS, place, f"8 bytes past {place}") for place in ("keys", "values", "keys")]
    runs, runner = sent(*places)
    assert runs.repetition is Repetition.DETERMINISTIC
    # A worker that dies can't be asked again: all runs are in fresh ones.
    assert runner.runs == 3
    assert [variant.value for variant in runs.variants] == ["in fresh processes"]


def test_a_hang_is_not_waited_for_more_often_than_needed() -> None:
    _, runner = sent(*[fails(Kind.HANG, "", "no reply")] * 9, repeats=9)
    assert runner.runs == AFTER_A_HANG


def test_a_rejected_case_is_not_run_again_in_the_same_process() -> None:
    runs, _ = sent(*[Verdict(unsupported="no kernel")] * 3)
    assert runs.outcome.reason == "no kernel"
    assert not runs.outcome.passes
