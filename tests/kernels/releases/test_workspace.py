"""The workspace of a server that runs on native kernels."""

import pytest

from attnfuzz.kernels.native.ops import workspace_bytes
from attnfuzz.kernels.releases.workspace import native_workspace
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

_GEOMETRY = Geometry(
    q_heads=8, kv_heads=2, head_dim_qk=64, head_dim_vo=64, page_size=16, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16
)


def _case(*steps: Step) -> Case:
    return Case(backend="sglang==0.5.9:trtllm_mha", geometry=_GEOMETRY, steps=steps)


def _used(batch: int, q_len: int) -> int:
    """What one call on the decode kernel uses, with keys enough for as many splits as there can be."""
    return workspace_bytes(batch=batch, q_len=q_len, q_heads=8, kv_heads=2, head_dim_vo=64, max_seq_len=1 << 20).total


@pytest.mark.parametrize(("batch", "q_len"), [(1, 1), (3, 4), (12, 4), (48, 1)])
def test_it_is_enough_however_the_rows_are_taken_for_requests(batch: int, q_len: int) -> None:
    requests = tuple(Request(slot=slot, q_len=4, kv_len=40) for slot in range(10))
    step = Step(mode=Mode.TARGET_VERIFY, requests=requests, padded_tokens=48, tokens_per_request=4)
    assert native_workspace(_case(step)) >= _used(batch, q_len)


def test_it_is_enough_for_a_ragged_step_that_is_padded_to_its_longest_request() -> None:
    requests = tuple(Request(slot=slot, q_len=1 + 3 * (slot == 0), kv_len=40) for slot in range(10))
    step = Step(mode=Mode.DRAFT_EXTEND, requests=requests, padded_tokens=13, tokens_per_request=4)
    assert native_workspace(_case(step)) >= _used(10, 4)


def test_it_is_enough_for_the_requests_of_a_prefill_that_are_decoded() -> None:
    requests = tuple(Request(slot=slot, q_len=1 if slot else 300, kv_len=300) for slot in range(10))
    step = Step(mode=Mode.EXTEND, requests=requests, padded_tokens=309)
    assert _used(9, 1) <= native_workspace(_case(step)) < _used(100, 1)


def test_it_is_enough_for_a_release_that_verifies_drafts_in_any_step() -> None:
    drafts = Step(mode=Mode.DRAFT_DECODE, requests=(Request(0, 1, 2),), padded_tokens=1, tokens_per_request=1)
    decode = Step(
        mode=Mode.DECODE, requests=(Request(0, 1, 159), Request(1, 1, 30)), padded_tokens=2, tokens_per_request=1
    )
    case = _case(drafts, decode)
    assert native_workspace(case) < _used(2, drafts.drafts) <= native_workspace(case, scheduled=True)
