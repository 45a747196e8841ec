"""Failures that come and go are reported as races, and each deciding run is repeated. The verdicts are made up."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from attnfuzz.harness.triage import Blame, Repetition, Triage, triage
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase, View

LOADED = case_file.load(Path(__file__).parents[1] / "short_seq_lens.json")
assert isinstance(LOADED, CallCase)
(CALL,) = LOADED.calls
ENDS = {name: View(buffer=name, shape=(3,), stride=(1,), offset=0) for name in ("cum_seq_lens_q", "cum_seq_lens_kv")}
LEGAL = replace(LOADED, calls=(replace(CALL, arguments={**CALL.arguments, **ENDS, "batch_size": 2}),))
"""A batch of two, with the metadata of two."""
REPEATS = 4


class Racing:
    """Fails with `kind` in every second worker, whatever the case.

    `runs` has each case with how often it was run, one behind the other.
    """

    def __init__(self, kind: Kind) -> None:
        self._failure = Observation(kind=kind, place="out", message="0.1 instead of 0.2", kernel=CALL.op, call=0)
        self._workers = 0
        self.runs: list[tuple[AnyCase, int]] = []

    def renew(self) -> None:
        self._workers += 1

    def verdict(self, case: AnyCase, backend: str | None = None) -> Verdict:
        before = self.runs.pop() if self.runs and self.runs[-1][0] is case else (case, 0)
        self.runs.append((case, before[1] + 1))
        return Verdict(observations=(self._failure,) if self._workers % 2 else ())

    def trace(self, case: AnyCase) -> tuple[Verdict, CallCase | None]:
        raise AssertionError(case)


def sent(kind: Kind) -> tuple[Triage, Racing]:
    runner = Racing(kind)
    return triage(LEGAL, runner, repeats=REPEATS), runner


def test_a_failure_that_is_flaky_in_fresh_processes_is_a_race() -> None:
    found, _ = sent(Kind.OUTPUT_MISMATCH)
    assert found.repetition is Repetition.RACING
    # Workers fail in turn, and the last of the fresh ones runs the case again.
    assert "It failed in 2 of 8 runs of the same case: it is a race." in found.sentences
    fresh, used, *_ = found.variants
    assert (fresh.outcome.failed, fresh.outcome.runs) == (2, REPEATS)
    assert (used.outcome.failed, used.outcome.runs) == (0, REPEATS)


def test_deciding_variants_of_a_race_are_repeated_in_fresh_processes() -> None:
    found, runner = sent(Kind.OUTPUT_MISMATCH)
    # The calls by themselves, and what the call asks for: run once, half of the races would not show.
    (_, alone), (asked, judged), *_ = runner.runs[-2:]
    assert (alone, judged) == (REPEATS, REPEATS)
    assert isinstance(asked, CallCase)
    assert asked.answer is not None
    assert found.fault is Blame.KERNEL
    assert "contradicts its arguments" in found.conclusion


@pytest.mark.parametrize("kind", [Kind.OUTPUT_MISMATCH, Kind.CANARY_OVERWRITTEN])
def test_nothing_is_concluded_from_variations_of_a_race(kind: Kind) -> None:
    found, _ = sent(kind)
    assert not [sentence for sentence in found.sentences if sentence.startswith("With ")]
