"""SGLang's sparse attention without a release: the servers of a case, and stand-ins for compiled kernels."""

from typing import Any

import pytest
import torch

from attnfuzz.kernels.releases.sparse_latents import ATTEND
from attnfuzz.kernels.sglang.engine import ENGINE
from attnfuzz.kernels.sglang.sparse import kernels
from attnfuzz.kernels.sglang.sparse.backend import SglangSparseBackend
from attnfuzz.kernels.sglang.sparse.kinds import SPARSE_KINDS
from attnfuzz.kernels.sglang.sparse.steps import capture_of, drafts_of, served
from attnfuzz.reference.case import Launch, Mode
from attnfuzz.reference.sparse.case import CHAIN, SparseCase, SparseMode, SparseRequest, SparseStep

VERIFY = SparseStep(mode=SparseMode.VERIFY, requests=(SparseRequest(2, 9),), padding=1, replayed=True)
OTHER = SparseStep(mode=SparseMode.VERIFY, requests=(SparseRequest(3, 9),))
DECODE = SparseStep(mode=SparseMode.DECODE, requests=(SparseRequest(1, 9),))
EXTEND = SparseStep(mode=SparseMode.EXTEND, requests=(SparseRequest(4, 9),))
CASE = SparseCase(backend="b", ops=CHAIN, steps=(VERIFY, OTHER, DECODE, EXTEND))


@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_a_kind_of_sparse_attention_is_a_backend_of_a_release(kind: str) -> None:
    assert isinstance(ENGINE.resolve(f"sglang==0.5.23:{kind}"), SglangSparseBackend)


def test_extends_of_a_draft_model_are_captured_since_0_5_15() -> None:
    backends: list[Any] = [ENGINE.resolve(f"sglang=={version}:dsa_draft") for version in ("0.5.14", "0.5.15")]
    assert [each.capability.replays for each in backends] == [False, True]


def test_each_number_of_drafts_has_a_server_and_prefills_run_on_that_with_the_most() -> None:
    assert [drafts_of(CASE, step) for step in CASE.steps] == [2, 3, 0, 3]
    modes = [step.mode for step in served(CASE, 3, drafting=False).steps]
    assert modes == [Mode.TARGET_VERIFY, Mode.EXTEND]


def test_options_of_a_server_are_the_same_with_another_seed() -> None:
    assert CASE.reseeded(1).seed != CASE.seed
    assert CASE.reseeded(1).variant == CASE.variant


def test_a_replayed_step_is_captured_with_its_padding() -> None:
    case = served(CASE, 2, drafting=True)
    replay, capture = case.steps
    assert capture_of(case, replay) == 1
    assert (capture.launch, capture.mode) == (Launch.CAPTURE, Mode.DRAFT_EXTEND_V2)
    assert capture.padded_tokens == replay.padded_tokens == 4
    assert replay.requests[0].slot == 0


def listed(**more: torch.Tensor) -> list[list[int]]:
    """Return the lists of two rows of requests 1 and 0, whose scores rise."""
    slots = torch.full((2, 2), 7, dtype=torch.int32)
    kernels.TOP_K_SLOTS.function(
        score=torch.arange(8.0).view(2, 4),
        lengths=torch.tensor([3, 4], dtype=torch.int32),
        requests=torch.tensor([1, 0], dtype=torch.int32),
        table=torch.tensor([[5, 6], [8, 9]], dtype=torch.int32),
        slots=slots,
        page_size=2,
        **more,
    )
    return [sorted(row) for row in slots.tolist()]


def test_the_best_positions_of_a_row_are_slots_of_its_request() -> None:
    assert listed() == [[17, 18], [12, 13]]


def test_a_row_that_was_planned_for_another_length_is_not_written() -> None:
    plan = torch.tensor([[2, 0], [3, 0], [9, 0]], dtype=torch.int32)
    assert listed(plan=plan) == [[17, 18], [7, 7]]


def test_heads_that_a_backend_adds_are_not_computed() -> None:
    query = torch.ones(1, 4, 576, dtype=torch.bfloat16)
    query[:, 2:] = 0
    keys, out = torch.ones(2, 1, 576, dtype=torch.bfloat16), torch.full((1, 4, 512), 3.0, dtype=torch.bfloat16)
    lists = torch.tensor([[0, 1, -1]], dtype=torch.int32)
    ATTEND.function(query=query, keys=keys, indices=lists, out=out, softmax_scale=1.0)
    assert out[0, :, 0].tolist() == [1, 1, 3, 3]
