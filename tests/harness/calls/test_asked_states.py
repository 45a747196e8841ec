"""Calls of native recurrences are judged by the states and tokens that their arguments name."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from small_cases import run
from traced_objects import traced

from attnfuzz.harness.calls.asked import NamesNothing, asked
from attnfuzz.kernels.recurrent.native import NATIVE_STATES
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.recurrent.case import Stale, StateCase, StateMode, StateOp, StateRow, StateStep
from attnfuzz.strategies.plain_states import plain_states

GATED = "native:gated_delta_rule"
RECURRENCES = {each.name: each.capability for each in NATIVE_STATES if each.capability.op is not StateOp.CONV}
MODES = [(name, mode) for name, can in RECURRENCES.items() for mode in can.modes]


def case_of(backend: str, mode: StateMode = StateMode.PREFILL) -> StateCase:
    """Two rows, the second of a new request in a prefill, and padding."""
    verifies, prefills = mode is StateMode.VERIFY, mode is StateMode.PREFILL
    tokens, accepted = 3 if prefills else 1 + verifies, 1 + verifies
    rows = (StateRow(0, tokens, accepted=accepted), StateRow(1, tokens, initial=not prefills, accepted=accepted))
    plain = plain_states(RECURRENCES[backend], backend)[0]
    return replace(plain, steps=(StateStep(mode=mode, rows=rows, padding=1),), drafts=int(verifies))


def calls_of(case: StateCase, folder: Path) -> CallCase:
    _, calls = traced(case, folder)
    return calls


def asked_of(calls: CallCase) -> CallCase:
    return asked(calls, len(calls.calls) - 1, Contract())


@pytest.mark.parametrize(("backend", "mode"), MODES)
def test_right_kernels_follow_their_arguments(backend: str, mode: StateMode, tmp_path: Path) -> None:
    calls = asked_of(calls_of(case_of(backend, mode), tmp_path))
    assert [each.name for each in calls.expected] == ["out", "state"]
    assert run(calls).observations == ()


def with_all_initial(calls: CallCase) -> CallCase:
    """The calls of a caller who takes each request for one that goes on."""
    buffers = tuple(
        replace(buffer, values=(1, 1), bits=None) if "has_initial_state" in buffer.name else buffer
        for buffer in calls.buffers
    )
    assert buffers != calls.buffers
    return replace(calls, buffers=buffers)


def test_a_kernel_that_takes_a_new_request_for_another_contradicts_its_arguments(tmp_path: Path) -> None:
    calls = asked_of(calls_of(case_of(GATED), tmp_path))
    assert {each.place for each in run(with_all_initial(calls)).observations} == {"out", "state"}


def test_a_caller_that_is_wrong_is_followed(tmp_path: Path) -> None:
    calls = with_all_initial(calls_of(case_of(GATED), tmp_path))
    assert run(calls).observations
    assert run(asked_of(calls)).observations == ()


def test_a_state_that_was_never_written_is_not_asked_for(tmp_path: Path) -> None:
    calls = with_all_initial(calls_of(replace(case_of(GATED), stale=Stale.NAN), tmp_path))
    with pytest.raises(
        NamesNothing, match=r"row 1 reads the state in slot [0-9]+, which is not finite: it was never written"
    ):
        asked_of(calls)
