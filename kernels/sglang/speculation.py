"""The spec_info of a forward: what a speculative worker leaves for the attention backend, in the release's own classes.

A file and line below sglang/srt/ is that of SGLang 0.5.9 unless another version is named.
"""

import random
from dataclasses import MISSING, fields
from typing import Any

import torch

from attnfuzz.reference.case import Case, Mode, Request, Step

HIDDEN_SIZE = 8
"""Of the hidden states that a draft is fed, which attention does not look at: any width will do."""

_WITH_BONUS = ("accept_length", "num_accepted_tokens", "num_accept_tokens")
"""Tokens that a request accepted, its bonus token included, in 0.5.9, 0.5.11 and 0.5.14 (eagle_info.py:712)."""

_WITH_BONUS_CPU = ("num_accepted_tokens_cpu", "num_accept_tokens_cpu")
"""The same on the CPU, from 0.5.11 on."""

_DRAFTS = ("num_accepted_drafts", "num_correct_drafts")
"""Drafts that a request accepted, without the bonus token, from 0.5.11 on."""

_DRAFTS_CPU = ("accept_length_cpu", "num_accepted_drafts_cpu")
"""The same on the CPU: 0.5.9's two accept lengths count differently (eagle_info.py:703)."""


def spec_info(loaded: Any, case: Case, step: Step, device: torch.device) -> Any | None:
    """What `step` is speculated with, its tensors on `device`; None where a server speculates nothing."""
    eagle = loaded.module("sglang.srt.speculative.eagle_info")
    match step.mode:
        case Mode.TARGET_VERIFY:
            return _verify(eagle, step)
        case Mode.DRAFT_EXTEND | Mode.DRAFT_EXTEND_V2:
            return _draft_extend(eagle, case, step, device)
        case _:
            return None


def _verify(eagle: Any, step: Step) -> Any:
    """The target model's (speculative/eagle_worker.py:694)."""
    stride = step.tokens_per_request
    return _made(
        eagle.EagleVerifyInput,
        draft_token_num=stride,
        spec_steps=stride - 1,
        topk=1,
        num_tokens_per_req=stride,
    )


def _draft_extend(eagle: Any, case: Case, step: Step, device: torch.device) -> Any:
    """The draft model's; a class of its own from 0.5.14 on.

    Spec v2 knows accept lengths on the device alone (speculative/eagle_worker_v2.py:542).
    """
    accepted = [_accepted(case, step, request) for request in step.requests]
    lengths = torch.tensor(accepted, dtype=torch.int32, device=device)
    hidden = (step.tokens, HIDDEN_SIZE)
    told: dict[str, Any] = {
        "hidden_states": torch.zeros(hidden, dtype=case.geometry.dtype.torch_dtype, device=device),
        "num_tokens_per_req": step.tokens_per_request,
        "num_tokens_for_logprob_per_req": step.tokens_per_request,
        **dict.fromkeys(_WITH_BONUS, lengths),
        **dict.fromkeys(_DRAFTS, lengths - 1),
    }
    if step.mode is Mode.DRAFT_EXTEND:
        told |= {name: list(accepted) for name in _WITH_BONUS_CPU}
        told |= {name: [length - 1 for length in accepted] for name in _DRAFTS_CPU}
    return _made(getattr(eagle, "EagleDraftExtendInput", eagle.EagleDraftInput), **told)


def _accepted(case: Case, step: Step, request: Request) -> int:
    """How many of its tokens a request accepted: those that it runs over in v1, any number of them in v2."""
    if step.mode is Mode.DRAFT_EXTEND:
        return request.q_len
    return random.Random(f"{case.seed} {request.slot}").randint(1, step.tokens_per_request)


def _made(kind: Any, **told: Any) -> Any:
    """An object of a release's dataclass: of what is told, what it has a field for; None for what must be told."""
    arguments = {}
    for each in fields(kind):
        if each.name in told:
            arguments[each.name] = told[each.name]
        elif each.default is MISSING and each.default_factory is MISSING:
            arguments[each.name] = None
    return kind(**arguments)
