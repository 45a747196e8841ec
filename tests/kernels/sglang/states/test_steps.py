"""Steps of recurrent state, as a server of SGLang runs them."""

from typing import Any

from attnfuzz.kernels.sglang.states.kinds import STATE_KINDS
from attnfuzz.kernels.sglang.states.steps import ServedSteps
from attnfuzz.reference.case import Launch, Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import PaddedRow, StateCase, StateMode, StateOp, StateRow, StateShape, StateStep


def of(*steps: StateStep, **fields: Any) -> StateCase:
    return StateCase(
        backend="sglang==0.5.23:gdn",
        op=StateOp.GATED_DELTA,
        normed=True,
        shape=StateShape(heads=1, value_heads=1, key_dim=8, value_dim=8),
        padded_row=PaddedRow.DUMMY,
        dtype=DType.BFLOAT16,
        steps=steps,
        **fields,
    )


def test_graphs_are_captured_before_the_steps_that_replay_them() -> None:
    prompt = StateStep(mode=StateMode.PREFILL, rows=(StateRow(lane=0, tokens=1, initial=False),), padding=3)
    verify = StateStep(mode=StateMode.VERIFY, rows=(StateRow(lane=0, tokens=3),), padding=2, replayed=True)
    again = StateStep(mode=StateMode.VERIFY, rows=(StateRow(lane=0, tokens=3, accepted=2),), padding=2, replayed=True)
    found = ServedSteps.of(of(prompt, verify, again, drafts=2))
    capture, *steps = found.case.steps
    assert (found.captures, capture.launch, capture.padded_tokens) == (1, Launch.CAPTURE, 9)
    assert [(step.mode, step.padded_tokens) for step in steps] == [
        (Mode.EXTEND, 4),
        (Mode.TARGET_VERIFY, 9),
        (Mode.TARGET_VERIFY, 9),
    ]
    # A verify begins behind the prompt, and the next one behind the two tokens that it accepts.
    assert [request.kv_len - request.q_len for step in steps for request in step.requests] == [0, 1, 3]


def test_servers_verify_all_drafts_on_slots_without_gaps() -> None:
    can = STATE_KINDS["gdn"].capability
    whole, part = (StateStep(mode=StateMode.VERIFY, rows=(StateRow(lane=0, tokens=tokens),)) for tokens in (3, 2))
    assert can.why_not(of(whole, drafts=2)) is None
    assert can.why_not(of(part, drafts=2)) == "verifies of some of the drafts"
    assert can.why_not(of(whole, drafts=2, gap=16)) == "gaps between slots"
