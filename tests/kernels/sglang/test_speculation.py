"""What a batch is speculated with has the fields of the release's own classes, which count tokens in several ways."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from harness_cases import GEOMETRY
from loaded_tree import served_case

from attnfuzz.kernels.sglang.batch import spec_info
from attnfuzz.reference.case import Mode, Request, Step


@dataclass
class _Verify:
    draft_token: torch.Tensor
    draft_token_num: int
    topk: int
    num_tokens_per_req: int = -1


@dataclass
class _Since9:
    accept_length: torch.Tensor
    accept_length_cpu: list[int] | None = None
    num_tokens_per_req: int = -1


@dataclass
class _Since11:
    num_accepted_drafts: torch.Tensor
    num_accepted_tokens: torch.Tensor
    num_accepted_drafts_cpu: list[int] | None = None
    num_accepted_tokens_cpu: list[int] | None = None


@dataclass
class _Since14:
    num_correct_drafts: torch.Tensor
    num_accept_tokens: torch.Tensor
    num_accept_tokens_cpu: list[int] | None = None


def _loaded(**classes: Any) -> Any:
    eagle = SimpleNamespace(EagleVerifyInput=_Verify, **classes)
    return SimpleNamespace(module=lambda _: eagle)


def _info(loaded: Any, mode: Mode, *q_lens: int, stride: int = 4) -> Any:
    requests = tuple(Request(slot, q_len, 9) for slot, q_len in enumerate(q_lens))
    padded = sum(q_lens)
    step = Step(mode=mode, requests=requests, padded_tokens=padded, tokens_per_request=stride)
    return spec_info(loaded, served_case(GEOMETRY, step), step, torch.device("cpu"))


@pytest.mark.parametrize("mode", [Mode.EXTEND, Mode.DECODE])
def test_a_server_that_does_not_draft_has_none(mode: Mode) -> None:
    assert _info(_loaded(EagleDraftInput=_Since9), mode, 1, stride=1 if mode is Mode.DECODE else 0) is None


def test_a_verify_states_only_the_number_of_drafts_of_a_request() -> None:
    info = _info(_loaded(EagleDraftInput=_Since9), Mode.TARGET_VERIFY, 4, 4)
    assert info == _Verify(draft_token=info.draft_token, draft_token_num=4, topk=1, num_tokens_per_req=4)
    assert info.draft_token is None


def test_the_accept_lengths_of_0_5_9_count_the_bonus_token_on_the_device_and_not_on_the_cpu() -> None:
    info = _info(_loaded(EagleDraftInput=_Since9), Mode.DRAFT_EXTEND, 3, 1)
    assert (info.accept_length.tolist(), info.accept_length_cpu, info.num_tokens_per_req) == ([3, 1], [2, 0], 4)


def test_the_counts_of_0_5_11_have_their_new_names() -> None:
    info = _info(_loaded(EagleDraftInput=_Since11), Mode.DRAFT_EXTEND, 3, 1)
    assert (info.num_accepted_tokens.tolist(), info.num_accepted_drafts.tolist()) == ([3, 1], [2, 0])
    assert (info.num_accepted_tokens_cpu, info.num_accepted_drafts_cpu) == ([3, 1], [2, 0])


def test_a_class_of_its_own_is_taken_where_there_is_one() -> None:
    info = _info(_loaded(EagleDraftInput=_Since9, EagleDraftExtendInput=_Since14), Mode.DRAFT_EXTEND_V2, 4, 4)
    assert isinstance(info, _Since14)
    assert (info.num_accept_tokens - info.num_correct_drafts).tolist() == [1, 1]


def test_spec_v2_knows_accept_lengths_on_the_device_alone() -> None:
    info = _info(_loaded(EagleDraftInput=_Since9), Mode.DRAFT_EXTEND_V2, 4, 4, 4)
    assert info.accept_length_cpu is None
    assert all(1 <= length <= 4 for length in info.accept_length.tolist())
