"""The Runner: each defect is the right failure, and confirmed in a fresh worker."""

from pathlib import Path

import pytest
from defective_backend import LUCKY_SEED
from harness_cases import GEOMETRY, decode_case, draft_extend_case
from msgspec.structs import replace

from attnfuzz.harness.backends.load import BackendFileError
from attnfuzz.harness.sandbox.check import CannotRun, Runner, render_failure
from attnfuzz.harness.sandbox.confirm import comes_back
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.workers.supervisor import (
    HandlerError,
)
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.validity import ImpossibleCase

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "my_backend.py"

DEFECTS = {
    "SEGFAULT": (Kind.ILLEGAL_ACCESS, "query", "read at query: 24 bytes past the end (row 4 of 4) (killed by SIGSEGV)"),
    "DIVISION": (Kind.WORKER_DIED, "killed by SIGFPE", "in attend, step 0 (decode)"),
    "ABORT": (Kind.WORKER_DIED, "killed by SIGABRT", "in attend"),
    "KILLED": (Kind.WORKER_DIED, "killed by SIGKILL from outside, most likely out of memory", "in attend"),
    "OPEN": (Kind.RAISED, "KeyError", "no room"),
    "PLANNER": (Kind.RAISED, "KeyError", "no plan"),
    "PLANNER_LATER": (Kind.RAISED, "ValueError", "cannot unpack"),
    "UNGUARDED": (Kind.RAISED, "ValueError", "outside of guarded memory: allocate it with memory.tensor"),
    "REJECTION": (Kind.UNEXPECTED_REJECTION, "ValueError", "head dim 8 is unsupported"),
    "KERNEL_ERROR": (Kind.RAISED, "RuntimeError", "cannot allocate"),
    "MUTATED_INPUT": (Kind.INPUT_MUTATED, "query", "attend changed its input query, first at element 32"),
    "CANARY": (Kind.CANARY_OVERWRITTEN, "out", "out"),
    "UNWRITTEN": (Kind.UNWRITTEN, "out", "request 2 (q_len 1, kv_len 9), token 0, head 0 was never written"),
    "NAN_QUERY": (Kind.NOT_FINITE, "inputs", "4 (token, head) rows attend with or to values that are not finite"),
    "NAN_ROW": (Kind.NOT_FINITE, "out", "request 0"),
    "PADDED_NAN": (Kind.NOT_FINITE, "padded rows", "1 of 1"),
    "WRONG_ROW": (Kind.OUTPUT_MISMATCH, "out", "request 0"),
    "LSE_BASE": (Kind.LSE_MISMATCH, "lse", "all are right in base e"),
    "EMPTY_ROW": (Kind.EMPTY_ROW, "empty rows", "request 1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_is_the_right_failure(runner: Runner, defective: str, defect: str) -> None:
    kind, place, words = DEFECTS[defect]
    verdict = runner.verdict(decode_case(f"{defective}:{defect}"))
    first = verdict.failures[0]
    assert (first.kind, first.place) == (kind, place)
    assert words in first.message
    assert verdict.unsupported is None
    assert runner.verdict(decode_case(f"{defective}:NONE")).observations == ()


@pytest.mark.slow
def test_an_exception_says_which_line_of_the_backend_it_comes_from(runner: Runner, defective: str) -> None:
    lines = {
        name: runner.verdict(decode_case(f"{defective}:{name}")).failures[0].raised_at
        for name in ("OPEN", "KERNEL_ERROR", "UNGUARDED", "REJECTION", "WRONG_ROW")
    }
    file = Path(defective).name
    assert [line.startswith(f"{file}:") for line in lines.values()] == [True, True, False, True, False], lines


@pytest.mark.slow
def test_a_hang_is_reported_with_the_kernel_that_was_at_work(defective: str) -> None:
    with Runner(timeout=1.0) as runner:
        # The first case waits for a worker to load the backend.
        runner.start(f"{defective}:HANG")
        (failure,) = runner.verdict(decode_case(f"{defective}:HANG")).failures
    assert (failure.kind, failure.place) == (Kind.HANG, "")
    assert "no reply within 1 s, in attend" in failure.message


@pytest.mark.slow
def test_a_slow_kernel_is_no_hang_with_the_patience_that_its_capability_asks_for(tmp_path: Path) -> None:
    """A worker's time limit is the matter."""
    file = tmp_path / "slow.py"
    source = EXAMPLE.read_text().replace("    for b, ", "    import time\n\n    time.sleep(0.8)\n    for b, ")
    more = (
        "PATIENT = FunctionBackend(attend, Capability(modes=Mode.of_kernels(), layouts=(KvLayout.NHD,), patience=20))"
    )
    file.write_text(f"{source}\nfrom attnfuzz import Capability, KvLayout, Mode\n{more}\n")
    case = decode_case(f"{file}:MINE", padded=3)
    case = replace(case, geometry=replace(GEOMETRY, kv_layout=KvLayout.NHD))
    with Runner(timeout=0.2) as runner:
        runner.start(case.backend)
        assert [failure.kind for failure in runner.verdict(case).failures] == [Kind.HANG]
        assert runner.verdict(case, f"{file}:PATIENT").observations == ()


def test_a_backend_without_defects_passes_with_margins(runner: Runner, defective: str) -> None:
    verdict = runner.verdict(decode_case(f"{defective}:NONE"))
    assert verdict.failures == ()
    assert verdict.rows == 3 * GEOMETRY.q_heads
    assert verdict.margins.keys() == {"T1", "T2", "T4"}


def test_a_fault_of_the_harness_is_no_failure_of_the_backend(runner: Runner, defective: str) -> None:
    with pytest.raises(HandlerError, match="LaunchError: a fault of the harness"):
        runner.verdict(decode_case(f"{defective}:HARNESS"))


def test_a_backend_that_can_not_say_its_noise_is_refused(runner: Runner, defective: str) -> None:
    with pytest.raises(BackendFileError, match=r"its noise\(float32\) raises ZeroDivisionError"):
        runner.verdict(decode_case(f"{defective}:NOISE"))


def test_a_clear_rejection_is_no_failure(runner: Runner, defective: str) -> None:
    verdict = runner.verdict(decode_case(f"{defective}:UNSUPPORTED"))
    assert verdict.unsupported == "there is no kernel for this"
    assert verdict.observations == ()


def test_a_case_beyond_the_capability_is_not_run(runner: Runner, defective: str) -> None:
    restarts = runner.restarts
    verdict = runner.verdict(draft_extend_case(f"{defective}:SEGFAULT"))
    assert verdict.unsupported is not None
    assert "does not support mode draft_extend_v2" in verdict.unsupported
    assert runner.restarts == restarts


def test_a_backend_that_cannot_run_states_the_remedy(runner: Runner, defective: str) -> None:
    with pytest.raises(CannotRun, match="can't run here: buy a faster machine"):
        runner.verdict(decode_case(f"{defective}:MISSING"))


def test_an_impossible_case_is_refused(runner: Runner, defective: str) -> None:
    with pytest.raises(ImpossibleCase):
        runner.verdict(replace(decode_case(f"{defective}:NONE"), seed=-1))


def test_an_unknown_contract_is_refused() -> None:
    with pytest.raises(ValueError, match="give one of declared, strict"):
        Runner(contract="lenient")


def confirmed(runner: Runner, case: Case) -> bool:
    first = runner.verdict(case).failures[0]
    return comes_back(runner, case, first)


@pytest.mark.slow
@pytest.mark.parametrize("defect", ["SEGFAULT", "UNWRITTEN", "LSE_BASE", "WRONG_ROW"])
def test_a_failure_that_comes_back_is_confirmed(runner: Runner, defective: str, defect: str) -> None:
    assert confirmed(runner, decode_case(f"{defective}:{defect}"))


@pytest.mark.parametrize(("margin", "back"), [(1.5, False), (100.0, True)])
def test_a_mismatch_that_chance_can_produce_has_to_come_back_with_fresh_seeds(
    runner: Runner, defective: str, margin: float, *, back: bool
) -> None:
    case = decode_case(f"{defective}:LUCKY_MISMATCH", seed=LUCKY_SEED)
    assert comes_back(runner, case, replace(runner.verdict(case).failures[0], margin=margin)) is back


def test_an_exact_failure_is_tried_with_the_same_seed(runner: Runner, defective: str) -> None:
    assert confirmed(runner, decode_case(f"{defective}:LUCKY_NAN", seed=LUCKY_SEED))


def test_a_failure_is_confirmed_in_a_fresh_worker(runner: Runner, defective: str) -> None:
    case = decode_case(f"{defective}:USED_PROCESS")
    runner.verdict(case)
    assert not confirmed(runner, case)


def test_a_failure_elsewhere_confirms_faults_alone(
    runner: Runner, defective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = decode_case(f"{defective}:NONE")

    def confirmed_by(kind: Kind, place: str, *, gap: bool = False) -> bool:
        again = Observation(kind=kind, place=place, message="", gap=gap)
        verdict = runner.verdict(case)
        monkeypatch.setattr(runner, "verdict", lambda _: replace(verdict, observations=(again,)))
        try:
            return comes_back(runner, case, Observation(kind=kind, place="out", message=""))
        finally:
            monkeypatch.undo()

    assert confirmed_by(Kind.ILLEGAL_ACCESS, "lse")
    assert confirmed_by(Kind.NOT_FINITE, "out")
    assert not confirmed_by(Kind.NOT_FINITE, "padded rows")
    assert not confirmed_by(Kind.NOT_FINITE, "out", gap=True)


def test_a_failure_is_rendered_with_margins_and_the_case(runner: Runner, defective: str) -> None:
    case = decode_case(f"{defective}:WRONG_ROW")
    text = render_failure(case, runner.verdict(case))
    assert "T1: " in text
    assert "largest margins (error / bound): " in text
    assert case_file.case_id(case) in text


def test_a_step_after_a_failure_is_not_run(runner: Runner, defective: str) -> None:
    case = decode_case(f"{defective}:NAN_ROW")
    later = Step(mode=Mode.DECODE, requests=(Request(0, 1, 7),), padded_tokens=1, tokens_per_request=1)
    verdict = runner.verdict(replace(case, steps=(*case.steps, later)))
    assert {failure.step for failure in verdict.failures} == {0}
