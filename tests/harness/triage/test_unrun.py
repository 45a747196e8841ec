"""Calls whose backend can't run here are triaged by their arguments, or on kernels that take the same calls."""

from pathlib import Path

import pytest
from harness_cases import decode_case
from msgspec.structs import replace
from traced_objects import traced

from attnfuzz.harness.triage import Blame
from attnfuzz.harness.triage.unrun import by_arguments, stand_in
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import CallCase

ELSEWHERE = "blackwell:trtllm_mha"


@pytest.fixture
def calls() -> CallCase:
    """A call whose seq_lens is too short, of a GPU's backend."""
    case = case_file.load(Path(__file__).parents[1] / "short_seq_lens.json")
    assert isinstance(case, CallCase)
    return replace(case, backend=ELSEWHERE)


def test_a_broken_precondition_is_the_callers_fault_without_a_run(calls: CallCase) -> None:
    found = by_arguments(calls)
    assert found is not None
    assert (found.fault, found.backend, found.call) == (Blame.CALLER, ELSEWHERE, 0)
    assert found.conclusion.endswith("breaks the contract of trtllm_batch_context_with_kv_cache.")
    assert found.breaches[0].startswith("batch_size is 3")


def test_calls_that_break_nothing_are_not_decided_by_their_arguments(tmp_path: Path) -> None:
    _, legal = traced(decode_case("trtllm_mha"), tmp_path)
    assert by_arguments(replace(legal, backend=ELSEWHERE)) is None


def test_native_kernels_stand_in_for_those_of_a_gpu(calls: CallCase) -> None:
    assert stand_in(calls) == "trtllm_mha"


def test_nothing_stands_in_for_calls_that_no_other_backend_takes(calls: CallCase) -> None:
    (call,) = calls.calls
    assert stand_in(replace(calls, backend="xqa", calls=(replace(call, op="xqa_batch_decode_with_kv_cache"),))) is None
