"""The target's forward before a draft model's decodes, and the slots that its rejected drafts leave."""

import pytest
from msgspec.structs import replace

from attnfuzz.kernels.vllm.drafter import TargetForward, rejected
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

GEOMETRY = Geometry(
    q_heads=1, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=16, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16
)
VERIFY = Step(mode=Mode.TARGET_VERIFY, requests=(Request(0, 4, 40),), padded_tokens=4, tokens_per_request=4)


def drafts(kv_len: int) -> Step:
    return Step(mode=Mode.DRAFT_DECODE, requests=(Request(0, 2, kv_len),), padded_tokens=2, tokens_per_request=2)


def case(*steps: Step) -> Case:
    return Case(backend="vllm", geometry=GEOMETRY, steps=steps)


@pytest.mark.parametrize("accepted", [1, 2, 3, 4])
def test_drafts_follow_from_the_verify_before_them(accepted: int) -> None:
    step = drafts(36 + accepted + 2)
    forward = TargetForward.before(case(VERIFY, step), 1, step.requests[0])
    assert forward == TargetForward(VERIFY.requests[0], accepted)
    assert forward.computed == 36


@pytest.mark.parametrize("kv_len", [38, 43, 20])
def test_other_drafts_follow_from_the_last_token_of_their_prefix(kv_len: int) -> None:
    step = drafts(kv_len)
    forward = TargetForward.before(case(VERIFY, step), 1, step.requests[0])
    assert forward == TargetForward(Request(0, 1, kv_len - 2), 1)
    assert rejected(case(VERIFY, step), 1) == []


def test_a_step_after_the_verify_takes_its_place() -> None:
    step, prompt = drafts(40), Step(mode=Mode.EXTEND, requests=(Request(0, 9, 9),), padded_tokens=9)
    assert TargetForward.before(case(VERIFY, prompt, step), 2, step.requests[0]).accepted == 1


def test_the_draft_model_writes_a_rejected_draft_behind_its_own() -> None:
    # Of the tokens at 36 to 39, one is accepted; drafts are decoded at 37 and 38.
    step = drafts(39)
    assert rejected(case(VERIFY, step), 1) == [(0, 39)]
    assert rejected(case(VERIFY, drafts(40)), 1) == []
    assert rejected(case(VERIFY), 0) == []
    assert rejected(case(replace(VERIFY, mode=Mode.DRAFT_EXTEND), step), 1) == [(0, 39)]
