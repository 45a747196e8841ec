"""A step as the release's own ForwardBatch with its spec_info, and the other inputs from the model.

A file and line below sglang/srt/ is that of SGLang 0.5.9 unless another version is named.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields
from itertools import chain
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.kernels.planning.lengths import running_sum
from attnfuzz.kernels.sglang.padding import extends
from attnfuzz.kernels.sglang.pool import first_new, new_tokens
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.kernels.sglang.trees import draft_depth, topk_of
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.masks import mask_of

_FORWARD_MODES = {
    Mode.DECODE: "DECODE",
    Mode.TARGET_VERIFY: "TARGET_VERIFY",
    Mode.DRAFT_EXTEND: "DRAFT_EXTEND",
    Mode.DRAFT_EXTEND_V2: "DRAFT_EXTEND_V2",
    Mode.EXTEND: "EXTEND",
    Mode.CHUNKED_PREFILL: "EXTEND",
}
"""The modes by the server's names: a chunked prefill is an extend whose prefix is longer than one chunk."""


def mode_of(batch: Any) -> Mode:
    """Return the mode of a ForwardBatch; a chunked prefill is an extend."""
    return Mode[batch.forward_mode.name]


def forward_batch(server: Server, index: int) -> Any:
    """Return the ForwardBatch of step `index` before padding."""
    return batch_of(server, server.case.steps[index])


def batch_of(server: Server, step: Step) -> Any:
    """Return the ForwardBatch of a step, as left by its init_new (0.5.9: forward_batch_info.py:377).

    A verify's seq_lens exclude the draft tokens, a draft extend's include them (0.5.9: eagle_info_v2.py:178). A server
    schedules no request without a token.
    """
    info = server.loaded.module("sglang.srt.model_executor.forward_batch_info")
    requests, runner = [request for request in step.requests if request.q_len], server.model_runner
    step = replace(step, requests=tuple(requests))
    verify, device = step.mode is Mode.TARGET_VERIFY, server.bench.device
    seq_lens = _longs(request.kv_len - (request.q_len if verify else 0) for request in requests)
    batch = info.ForwardBatch(
        forward_mode=info.ForwardMode[_FORWARD_MODES[step.mode]],
        batch_size=len(requests),
        input_ids=torch.ones(step.tokens, dtype=torch.int64, device=device),
        req_pool_indices=_longs(server.rows.of[request.slot] for request in requests).to(device),
        # A server keeps a separate copy on the CPU.
        seq_lens=seq_lens.clone().to(device),
        out_cache_loc=_longs(server.pool.new_locations(step)).to(device),
        seq_lens_sum=int(seq_lens.sum()),
        seq_lens_cpu=seq_lens,
        positions=_longs(chain.from_iterable(_positions(step))).to(device),
        lora_ids=[None] * len(requests),
        spec_algorithm=runner.spec_algorithm,
        spec_info=spec_info(server.loaded, server.case, step, device),
    )
    # Later versions have them elsewhere (0.5.14: forward_context.py).
    for name in ("req_to_token_pool", "token_to_kv_pool", "attn_backend"):
        if name in info.ForwardBatch.__dataclass_fields__:
            setattr(batch, name, getattr(runner, name))
    if step.mode not in (Mode.DECODE, Mode.TARGET_VERIFY):
        _extend(batch, step, device)
    # From 0.5.22 on, the pool translates the slots of a forward (0.5.23: forward_batch_info.py:1139).
    if hasattr(runner.kv_index_translator, "own_plan"):
        runner.kv_index_translator.own_plan(batch).bind(batch, runner.kv_index_translator, cols=None)
    return batch


def _positions(step: Step) -> Iterator[range]:
    """Return the positions of each request's new tokens."""
    return (range(first_new(request), request.kv_len) for request in step.requests)


def _extend(batch: Any, step: Step, device: torch.device) -> None:
    """Set the fields of an extend (0.5.9: forward_batch_info.py:485)."""
    lens = [request.q_len for request in step.requests]
    prefixes = [first_new(request) for request in step.requests]
    batch.extend_num_tokens = step.tokens
    batch.extend_seq_lens, batch.extend_seq_lens_cpu = _ints(lens, device), lens
    batch.extend_prefix_lens, batch.extend_prefix_lens_cpu = _ints(prefixes, device), prefixes
    batch.extend_start_loc = _ints(running_sum(lens)[:-1], device)
    batch.extend_logprob_start_lens_cpu = prefixes


def count_tokens_of_ranks(server: Server, batch: Any, step: Step) -> None:
    """Set the numbers of tokens of the server's ranks, which a batch has before it is planned.

    0.5.9: forward_batch_info.py:449 (0.5.23: :943).
    """
    tokens = server.ranks.tokens(step)
    batch.is_extend_in_batch = extends(step)
    for name in ("global_num_tokens", "global_num_tokens_for_logprob"):
        setattr(batch, f"{name}_cpu", list(tokens))
        setattr(batch, f"{name}_gpu", _longs(tokens).to(server.bench.device))


def pad(server: Server, batch: Any) -> None:
    """Pad `batch` among the server's ranks by the release's own prepare_mlp_sync_batch."""
    batch.prepare_mlp_sync_batch(server.model_runner)


def new_keys(server: Server, step: Step, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of the tokens that a step writes [rows, kv_heads, head_dim], in the model's dtype.

    Those of padded rows are finite. For a quantised cache, they are fp8 numbers times a scale in the wider dtype, so
    that quantising them is exact.
    """
    case, tokens = server.case, server.pool.tokens
    new = new_tokens(tokens, step)
    spare = [tokens.extra.start + row % len(tokens.extra) for row in range(rows - len(new))]
    at = torch.tensor(new + spare, dtype=torch.long)
    quantised = case.geometry.kv_dtype is not case.geometry.dtype
    made = []
    for values, scale in ((tokens.key, case.scales.k), (tokens.value, case.scales.v)):
        rows_of = values.view(case.geometry.kv_dtype.bits)[at].view(values.dtype)
        made.append((rows_of.float() * scale).to(case.geometry.dtype.torch_dtype) if quantised else rows_of)
    return made[0], made[1]


def _longs(values: Iterable[int]) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.int64)


def _ints(values: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


HIDDEN_SIZE = 8
"""Width of a draft's hidden states. Attention ignores them, so any width will do."""

_WITH_BONUS = ("accept_length", "num_accepted_tokens", "num_accept_tokens")
"""Names of a request's accepted tokens with its bonus token in 0.5.9, 0.5.11 and 0.5.14 (eagle_info.py:712)."""

_WITH_BONUS_CPU = ("num_accepted_tokens_cpu", "num_accept_tokens_cpu")
"""The names of the same on the CPU, from 0.5.11 on."""

_DRAFTS = ("num_accepted_drafts", "num_correct_drafts")
"""Names of a request's accepted drafts, without the bonus token, from 0.5.11 on."""

_DRAFTS_CPU = ("accept_length_cpu", "num_accepted_drafts_cpu")
"""The names of the same on the CPU: 0.5.9's two accept lengths count differently (eagle_info.py:703)."""


def spec_info(loaded: Any, case: Case, step: Step, device: torch.device) -> Any | None:
    """Return the speculation input of `step`, its tensors on `device`; None for steps without speculation."""
    eagle = loaded.module("sglang.srt.speculative.eagle_info")
    match step.mode:
        case Mode.TARGET_VERIFY:
            return _verify(eagle, case, step, device)
        case Mode.DRAFT_EXTEND | Mode.DRAFT_EXTEND_V2:
            return _draft_extend(eagle, case, step, device)
        case _:
            return None


def _verify(eagle: Any, case: Case, step: Step, device: torch.device) -> Any:
    """Return the input of the target model (speculative/eagle_worker.py:694)."""
    stride = step.tokens_per_request
    return _made(
        eagle.EagleVerifyInput,
        custom_mask=verify_mask(case, step).to(device),
        positions=_longs(chain.from_iterable(_positions(step))).to(device),
        draft_token_num=stride,
        spec_steps=draft_depth(case),
        topk=topk_of(case),
        num_tokens_per_req=stride,
    )


def verify_mask(case: Case, step: Step) -> torch.Tensor:
    """Return the flat mask of a verify, bool: for each request [drafts, prefix + drafts].

    A server builds it on its GPU, for trees and chains (speculative/eagle_utils.py:76, TreeMaskMode.FULL_MASK).
    """
    masks = []
    for request in step.requests:
        mask = mask_of(case, step, request)
        if mask is None:
            rows = torch.ones(request.q_len, request.kv_len, dtype=torch.bool)
            mask = rows.tril(request.kv_len - request.q_len)
        masks.append(mask.flatten())
    return torch.cat([*masks, torch.empty(0, dtype=torch.bool)])


def _draft_extend(eagle: Any, case: Case, step: Step, device: torch.device) -> Any:
    """Return the input of the draft model, which is a separate class from 0.5.14 on.

    Spec v2 has accept lengths on the device only (speculative/eagle_worker_v2.py:542).
    """
    accepted = [_accepted(case, step, request) for request in step.requests]
    lengths = torch.tensor(accepted, dtype=torch.int32, device=device)
    hidden = (step.tokens, HIDDEN_SIZE)
    arguments: dict[str, Any] = {
        "hidden_states": torch.zeros(hidden, dtype=case.geometry.dtype.torch_dtype, device=device),
        "num_tokens_per_req": step.tokens_per_request,
        "num_tokens_for_logprob_per_req": step.tokens_per_request,
        **dict.fromkeys(_WITH_BONUS, lengths),
        **dict.fromkeys(_DRAFTS, lengths - 1),
    }
    if step.mode is Mode.DRAFT_EXTEND:
        arguments |= {name: list(accepted) for name in _WITH_BONUS_CPU}
        arguments |= {name: [length - 1 for length in accepted] for name in _DRAFTS_CPU}
    return _made(getattr(eagle, "EagleDraftExtendInput", eagle.EagleDraftInput), **arguments)


def draft_input(loaded: Any, case: Case, step: Step, device: torch.device) -> Any:
    """Return the input of the draft model before it decodes (0.5.23: speculative/eagle_info.py:157)."""
    eagle, rows = loaded.module("sglang.srt.speculative.eagle_info"), len(step.requests)
    return eagle.EagleDraftInput(
        topk_p=torch.ones((rows, 1), device=device),
        topk_index=torch.zeros((rows, 1), dtype=torch.int64, device=device),
        hidden_states=torch.zeros((rows, HIDDEN_SIZE), dtype=case.geometry.dtype.torch_dtype, device=device),
        num_tokens_per_req=1,
        num_tokens_for_logprob_per_req=1,
    )


def _accepted(case: Case, step: Step, request: Request) -> int:
    """Return the number of tokens that a request accepted: in v1 those that the step runs over, in v2 any of them."""
    if step.mode is Mode.DRAFT_EXTEND:
        return request.q_len
    return random.Random(f"{case.seed} {request.slot}").randint(1, step.tokens_per_request)


def _made(kind: Any, **given: Any) -> Any:
    """Create an object of a release's dataclass from arguments with fields, and None for other required fields."""
    arguments = {}
    for each in fields(kind):
        if each.name in given:
            arguments[each.name] = given[each.name]
        elif each.default is MISSING and each.default_factory is MISSING:
            arguments[each.name] = None
    return kind(**arguments)
