"""The native kernels of recurrent state pass the cases that the strategy draws, and wrong ones do not."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.native import recurrent_ops as ops
from attnfuzz.kernels.recurrent.backend import StateBackend
from attnfuzz.kernels.recurrent.native import NATIVE_STATES
from attnfuzz.reference import case_file
from attnfuzz.reference.recurrent.case import (
    PaddedRow,
    Stale,
    StateCase,
    StateMode,
    StateOp,
    StateRow,
    StateShape,
    StateStep,
)
from attnfuzz.strategies.states import state_cases

pytestmark = pytest.mark.slow
"""Many cases are drawn, and run."""

BY_NAME = {each.name: each for each in NATIVE_STATES}
SHAPE = StateShape(heads=1, value_heads=2, key_dim=8, value_dim=4)


def judged(case: StateCase, backend: StateBackend) -> Verdict:
    case.validate()
    assert backend.capability.why_not(case) is None
    return Execution(Task(case=case, backend=case.backend), lambda _: None, backend=backend).run()  # type: ignore[arg-type]


def wrong(name: str, mode: StateMode, change: Callable[[dict[str, Any]], None]) -> StateBackend:
    """Return a backend whose function gets changed arguments."""
    right = BY_NAME[name]
    function = right.functions[mode]

    def changed(**arguments: Any) -> None:
        change(arguments)
        function(**arguments)

    changed.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return replace(right, functions={**right.functions, mode: changed})


def delta(*steps: StateStep, **fields: Any) -> StateCase:
    return StateCase(backend="native:gated_delta_rule", op=StateOp.GATED_DELTA, shape=SHAPE, steps=steps, **fields)


def prefill(*rows: StateRow, padding: int = 0) -> StateStep:
    return StateStep(StateMode.PREFILL, rows, padding)


def verify(*rows: StateRow, padding: int = 0, replayed: bool = False) -> StateStep:
    return StateStep(StateMode.VERIFY, rows, padding, replayed)


@pytest.mark.parametrize("name", BY_NAME)
def test_native_kernels_pass_drawn_cases(name: str) -> None:
    backend = BY_NAME[name]

    def visit(case: StateCase) -> None:
        verdict = judged(case, backend)
        assert not verdict.observations, (case, verdict.observations)
        assert case_file.decode(case_file.encode(case)) == case

    run_examples(state_cases(backend.capability, name), visit, examples=12, seed_of=5)


def test_a_new_request_whose_slot_is_read_gets_a_wrong_output() -> None:
    case = delta(prefill(StateRow(0, 3, initial=False)), prefill(StateRow(0, 2, initial=False)))
    backend = wrong(
        "native:gated_delta_rule",
        StateMode.PREFILL,
        lambda given: given.update(has_initial_state=torch.ones(1, dtype=torch.bool)),
    )
    found = judged(case, backend).observations
    assert (found[0].kind, found[0].place) == (Kind.OUTPUT_MISMATCH, "out")
    stale = judged(case.having(stale=Stale.NAN), backend).observations
    assert (stale[0].kind, stale[0].place) == (Kind.NOT_FINITE, "out")


def test_the_accepted_count_chooses_the_slot() -> None:
    case = delta(verify(StateRow(0, 3, accepted=1)), verify(StateRow(0, 2, accepted=2)), drafts=2)
    right = judged(case, BY_NAME[case.backend])
    assert not right.observations
    off = wrong(
        case.backend, StateMode.VERIFY, lambda given: given.update(num_accepted=torch.ones(1, dtype=torch.int32))
    )
    (first, *_) = judged(case, off).observations
    assert (first.kind, first.place, first.step) == (Kind.OUTPUT_MISMATCH, "out", 1)
    assert "This is the output from the state of slot 0" in first.message


def test_a_padding_row_that_is_written_is_a_stray_write() -> None:
    case = delta(verify(StateRow(0, 1), padding=1), drafts=1)

    def spare(given: dict[str, Any]) -> None:
        for name in ("draft_slots", "draft_targets"):
            given[name] = torch.where(given[name] < 0, 3, given[name])

    off = wrong(case.backend, StateMode.VERIFY, spare)
    kinds = {each.kind for each in judged(case, off).observations}
    assert Kind.STRAY_WRITE in kinds


@pytest.mark.parametrize("row", [PaddedRow.NEGATIVE, PaddedRow.DUMMY])
def test_replayed_steps_with_fewer_requests_pass(row: PaddedRow) -> None:
    steps = (
        verify(StateRow(0, 2), StateRow(1, 1), padding=1, replayed=True),
        verify(StateRow(1, 2), padding=2, replayed=True),
    )
    case = delta(*steps, drafts=1, padded_row=row, gap=16)
    assert not judged(case, BY_NAME[case.backend]).observations


def test_a_state_that_moves_leaves_its_old_slot() -> None:
    case = delta(prefill(StateRow(0, 2)), prefill(StateRow(0, 1)), move=True)
    assert not judged(case, BY_NAME[case.backend]).observations
    off = wrong(case.backend, StateMode.PREFILL, lambda given: given.update(target_slots=given["slots"]))
    kinds = {(each.kind, each.place) for each in judged(case, off).observations}
    assert kinds == {(Kind.UNWRITTEN, "state"), (Kind.STRAY_WRITE, "state")}


def test_the_inputs_of_a_convolution_are_kept_exactly() -> None:
    shape = StateShape(heads=1, value_heads=1, key_dim=1, value_dim=3)
    case = StateCase(
        backend="native:causal_conv1d",
        op=StateOp.CONV,
        shape=shape,
        steps=(prefill(StateRow(0, 2, initial=False)), verify(StateRow(0, 2)), verify(StateRow(0, 1, accepted=2))),
        drafts=2,
    )
    assert not judged(case, BY_NAME[case.backend]).observations

    def shifted(**given: Any) -> None:
        ops.causal_conv1d(**given)
        given["state"][given["slots"].long(), :, :3] = given["state"][given["slots"].long(), :, :3].roll(1, -1)

    shifted.__signature__ = inspect.signature(ops.causal_conv1d)  # type: ignore[attr-defined]
    right = BY_NAME[case.backend]
    off = replace(right, functions={**right.functions, StateMode.PREFILL: shifted})
    (found,) = judged(case, off).observations
    assert (found.kind, found.place, found.step) == (Kind.WRITE_MISMATCH, "state", 0)


def test_states_and_outputs_of_nan_fail() -> None:
    case = delta(prefill(StateRow(0, 1)))

    def poisoned(given: dict[str, Any]) -> None:
        given["value"] = torch.full_like(given["value"], torch.nan)

    kinds = {
        (each.kind, each.place) for each in judged(case, wrong(case.backend, StateMode.PREFILL, poisoned)).observations
    }
    assert kinds == {(Kind.NOT_FINITE, "out"), (Kind.NOT_FINITE, "state")}


def test_an_output_that_is_returned_in_place_of_written_is_named() -> None:
    def returns(*, query: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        del query
        return torch.zeros_like(out)

    backend = replace(BY_NAME["native:gated_delta_rule"], functions=dict.fromkeys(StateMode, returns))
    (first, *_) = judged(delta(prefill(StateRow(0, 3, initial=False))), backend).observations
    assert (first.kind, first.place) == (Kind.UNWRITTEN, "out")
    assert "returned a tensor [3, 2, 4], torch.float32, which is ignored: write the result into out" in first.message


def test_each_mode_of_a_capability_needs_a_function() -> None:
    backend = BY_NAME["native:gated_delta_rule"]
    with pytest.raises(ValueError, match="has no function for decode, verify: add one"):
        replace(backend, functions={StateMode.PREFILL: backend.functions[StateMode.PREFILL]})
