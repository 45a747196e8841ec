"""The blocks of states on a server with a prefix cache."""

from typing import Any

from attnfuzz.kernels.vllm.states.aligned import AlignedBlocks
from attnfuzz.kernels.vllm.states.demands import Demands
from attnfuzz.reference.recurrent.case import PaddedRow, StateCase, StateMode, StateOp, StateRow, StateShape, StateStep

SIZE = 8
"""Tokens of a block."""


def aligned(*steps: StateStep, **fields: Any) -> AlignedBlocks:
    shape = StateShape(heads=1, value_heads=1, key_dim=8, value_dim=8)
    case = StateCase(
        backend="vllm==0.33.0:mamba2",
        op=StateOp.SSM,
        shape=shape,
        padded_row=PaddedRow.DUMMY,
        move=True,
        steps=steps,
        **fields,
    )
    case.validate()
    demands = Demands.of(case)
    assert demands.block_size == SIZE
    return AlignedBlocks(case, demands)


def step(mode: StateMode, *rows: StateRow) -> StateStep:
    return StateStep(mode=mode, rows=rows)


def test_requests_that_find_the_same_block_in_the_cache_read_it_and_write_their_own() -> None:
    found = aligned(step(StateMode.PREFILL, StateRow(0, 3), StateRow(2, 20), StateRow(4, 5, initial=False)))
    first, second, new = found.steps[0]
    assert first.read == second.read
    assert (new.read, new.begins) == (None, False)
    assert len({first.read, *first.written, *second.written, *new.written}) == 4
    # 8 tokens of the cache and 20 new ones: the state is in the last of four columns.
    assert found.tables()[1] == [first.read, 0, 0, *second.written]


def test_a_step_into_another_block_reads_the_state_of_the_last_one() -> None:
    decode = step(StateMode.DECODE, StateRow(0, 1))
    found = aligned(step(StateMode.PREFILL, StateRow(0, SIZE - 1, initial=False)), decode, decode)
    (prefill,), (within,), (across,) = found.steps
    assert within.read == within.written[0] == prefill.written[0] == across.read
    assert across.written != within.written


def test_after_a_verify_the_state_at_the_end_of_a_block_goes_to_the_block() -> None:
    prompt = step(StateMode.PREFILL, StateRow(0, SIZE - 2, initial=False))
    found = aligned(
        prompt,
        step(StateMode.VERIFY, StateRow(0, 4)),
        step(StateMode.VERIFY, StateRow(0, 4, accepted=3)),
        drafts=3,
    )
    (first,), (verify,), (after,) = found.steps
    # Tokens 6 to 9: the state after two of them is that of the first block's end.
    assert verify.committed == ((first.written[0], 2),)
    assert after.read == verify.written[2]
    assert found.tables()[0][:2] == [first.written[0], verify.written[0]]


def test_a_new_request_of_a_lane_gets_the_blocks_of_the_former_one() -> None:
    new = step(StateMode.PREFILL, StateRow(0, 3, initial=False))
    found = aligned(new, new, scattered=True)
    (former,), (later,) = found.steps
    assert former.written == later.written
    assert found.of_lane[0] == [*former.written]
