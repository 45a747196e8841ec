"""A verify whose server copies the state after the accepted tokens to the request's slot."""

import pytest
import torch

from attnfuzz.harness.families.state_judge import compared_state, judge_state
from attnfuzz.harness.judge.compared import judge_compared
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.recurrent.result import StateResult, TouchedRow
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.recurrent.case import StateCase, StateMode, StateOp, StateRow, StateShape, StateStep
from attnfuzz.reference.recurrent.noise import StateNoise
from attnfuzz.reference.recurrent.recurrence import convolve, recur
from attnfuzz.reference.recurrent.values import CaseValues

OWN, DRAFTS = 1, (2, 3, 4)
"""The slot of the request, and those of the states after its three tokens."""

ACCEPTED = 2

TERMS = JudgingTerms(
    contract=Contract(),
    noise=None,
    alpha=1e-3,
    strict=False,
    tiers=frozenset(Tier),
    step=0,
    mode="verify",
    kernel="kernel",
)


def result(op: StateOp, committed: int) -> StateResult:
    """A right verify of three tokens, after which the request's slot gets the state after `committed` tokens."""
    convolves = op is StateOp.CONV
    shape = StateShape(heads=1, value_heads=1, key_dim=1 if convolves else 4, value_dim=4)
    row = StateRow(lane=0, tokens=3)
    case = StateCase(
        backend="native:kernel", op=op, shape=shape, drafts=2, steps=(StateStep(mode=StateMode.VERIFY, rows=(row,)),)
    )
    values, noise = CaseValues(case), StateNoise()
    inputs, state = values.step(0, 3), values.state(0, 1)
    before = torch.zeros(6, *case.state_shape)
    before[OWN] = state
    after = before.clone()
    if convolves:
        width = shape.width - 1
        whole = torch.cat((state[:, :width], inputs.value[:, 0].T), 1)
        out = convolve(values.taps, whole, noise)[0].T
        after[DRAFTS[0], :, : width + 2] = whole[:, 1:]
        after[OWN, :, :width] = whole[:, committed : committed + width]
    else:
        answer = recur(values.terms(inputs, slice(0, 3), given=False), state.double(), noise, all_states=True)
        out = answer.out
        after[list(DRAFTS)] = torch.stack(answer.states).float()
        after[OWN] = answer.states[committed - 1].float() if committed else state
    touched = TouchedRow(
        number=0,
        tokens=slice(0, 3),
        read=OWN,
        written=DRAFTS[:1] if convolves else DRAFTS,
        accepted=1,
        committed=((OWN, ACCEPTED),),
    )
    return StateResult(
        case=case,
        mode=StateMode.VERIFY,
        inputs=inputs,
        values=values,
        out=out.float(),
        before=before,
        after=after,
        rows=(touched,),
        free=frozenset(),
        noise=noise,
        given=False,
    )


@pytest.mark.parametrize("op", [StateOp.GATED_DELTA, StateOp.CONV])
@pytest.mark.parametrize(("committed", "kinds"), [(2, ()), (3, (Kind.WRITE_MISMATCH,)), (0, (Kind.UNWRITTEN,))])
def test_the_state_after_another_number_of_tokens_is_wrong(
    op: StateOp, committed: int, kinds: tuple[Kind, ...]
) -> None:
    given = result(op, committed)
    found = judge_state(given, TERMS).observations
    assert tuple(each.kind for each in found) == kinds
    assert bool(judge_compared(compared_state(given), TERMS).observations) is bool(kinds)
