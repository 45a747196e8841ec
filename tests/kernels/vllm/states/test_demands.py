"""Steps of recurrent state, as a scheduler sees them."""

from typing import Any

from attnfuzz.kernels.vllm.states.demands import Demands
from attnfuzz.kernels.vllm.states.kinds import STATE_KINDS
from attnfuzz.reference.recurrent.case import PaddedRow, StateCase, StateMode, StateOp, StateRow, StateShape, StateStep


def demands(*steps: StateStep, **fields: Any) -> Demands:
    shape = StateShape(heads=1, value_heads=1, key_dim=8, value_dim=8)
    case = StateCase(
        backend="vllm==0.33.0:gdn",
        op=StateOp.GATED_DELTA,
        normed=True,
        shape=shape,
        padded_row=PaddedRow.DUMMY,
        steps=steps,
        **fields,
    )
    case.validate()
    assert STATE_KINDS["gdn"].capability.why_not(case) is None
    return Demands.of(case)


def spans(found: Demands) -> list[list[tuple[int, int, int]]]:
    """The requests of each step: their sequence, and their tokens before and after."""
    return [[(each.slot, each.kv_len - each.q_len, each.kv_len) for each in step.requests] for step in found.case.steps]


def test_a_request_goes_on_behind_its_accepted_tokens() -> None:
    verify = StateStep(mode=StateMode.VERIFY, rows=(StateRow(lane=0, tokens=3),))
    accepted = StateStep(mode=StateMode.VERIFY, rows=(StateRow(lane=0, tokens=3, accepted=2),))
    found = demands(verify, accepted, drafts=2)
    (first,), (second,) = spans(found)
    assert second[1] == first[1] + 2
    assert found.decoding == {(0, 0), (1, 0)}


def test_a_new_request_of_a_lane_is_another_sequence_on_the_same_slots() -> None:
    new = StateStep(mode=StateMode.PREFILL, rows=(StateRow(lane=0, tokens=5, initial=False),))
    found = demands(new, new)
    assert spans(found) == [[(0, 0, 5)], [(1, 0, 5)]]
    assert found.lanes == {0: 0, 1: 0}


def test_a_prompt_as_long_as_a_verify_is_no_decode() -> None:
    rows = (StateRow(lane=0, tokens=3, initial=False), StateRow(lane=1, tokens=3), StateRow(lane=2, tokens=0))
    found = demands(StateStep(mode=StateMode.PREFILL, rows=rows), drafts=2)
    assert len(found.case.steps[0].requests) == 2
    assert not found.decoding


def test_a_server_has_a_graph_of_each_steps_size_and_as_many_requests() -> None:
    verify = StateStep(mode=StateMode.VERIFY, rows=(StateRow(lane=0, tokens=2),), padding=3, replayed=True)
    prefill = StateStep(mode=StateMode.PREFILL, rows=(StateRow(lane=1, tokens=7),))
    limits = demands(verify, prefill, drafts=2).limits
    assert limits.graphs == (3, 9, 12)
    assert limits.requests == 4
