"""A step as the release's own ForwardBatch, and what the model hands over beside it."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.kernels.lengths import running_sum
from attnfuzz.kernels.sglang.padding import extends
from attnfuzz.kernels.sglang.pool import first_new, new_tokens
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.kernels.sglang.speculation import spec_info
from attnfuzz.reference.case import Mode, Step

_FORWARD_MODES = {
    Mode.DECODE: "DECODE",
    Mode.TARGET_VERIFY: "TARGET_VERIFY",
    Mode.DRAFT_EXTEND: "DRAFT_EXTEND",
    Mode.DRAFT_EXTEND_V2: "DRAFT_EXTEND_V2",
    Mode.EXTEND: "EXTEND",
    Mode.CHUNKED_PREFILL: "EXTEND",
}
"""What a server calls a mode: a chunked prefill is an extend whose prefix is longer than one chunk."""


def forward_batch(server: Server, index: int) -> Any:
    """The ForwardBatch of step `index` before padding, as its init_new leaves it (0.5.9: forward_batch_info.py:377).

    A verify's seq_lens exclude the draft tokens, a draft extend's include them (0.5.9: eagle_info_v2.py:178). A server
    schedules no request without a token.
    """
    info, step = server.loaded.module("sglang.srt.model_executor.forward_batch_info"), server.case.steps[index]
    requests, runner = [request for request in step.requests if request.q_len], server.model_runner
    step = replace(step, requests=tuple(requests))
    verify, device = step.mode is Mode.TARGET_VERIFY, server.bench.device
    seq_lens = _longs(request.kv_len - (request.q_len if verify else 0) for request in requests)
    positions = (range(first_new(request), request.kv_len) for request in requests)
    batch = info.ForwardBatch(
        forward_mode=info.ForwardMode[_FORWARD_MODES[step.mode]],
        batch_size=len(requests),
        input_ids=torch.ones(step.tokens, dtype=torch.int64, device=device),
        req_pool_indices=_longs(server.rows.of[request.slot] for request in requests).to(device),
        # A server's CPU mirror is a tensor of its own.
        seq_lens=seq_lens.clone().to(device),
        out_cache_loc=_longs(server.pool.new_locations(step)).to(device),
        seq_lens_sum=int(seq_lens.sum()),
        seq_lens_cpu=seq_lens,
        positions=_longs(chain.from_iterable(positions)).to(device),
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
    # From 0.5.22 on, the slots of a forward are named as its pool does (0.5.23: forward_batch_info.py:1139).
    if hasattr(runner.kv_index_translator, "own_plan"):
        runner.kv_index_translator.own_plan(batch).bind(batch, runner.kv_index_translator, cols=None)
    return batch


def _extend(batch: Any, step: Step, device: torch.device) -> None:
    """The fields that an extend has (0.5.9: forward_batch_info.py:485)."""
    lens = [request.q_len for request in step.requests]
    prefixes = [first_new(request) for request in step.requests]
    batch.extend_num_tokens = step.tokens
    batch.extend_seq_lens, batch.extend_seq_lens_cpu = _ints(lens, device), lens
    batch.extend_prefix_lens, batch.extend_prefix_lens_cpu = _ints(prefixes, device), prefixes
    batch.extend_start_loc = _ints(running_sum(lens)[:-1], device)
    batch.extend_logprob_start_lens_cpu = prefixes


def pad(server: Server, batch: Any, step: Step) -> None:
    """Let the release pad `batch` by its own prepare_mlp_sync_batch among the server's ranks."""
    tokens = server.ranks.tokens(step)
    batch.is_extend_in_batch = extends(step)
    for name in ("global_num_tokens", "global_num_tokens_for_logprob"):
        setattr(batch, f"{name}_cpu", list(tokens))
        setattr(batch, f"{name}_gpu", _longs(tokens).to(server.bench.device))
    batch.prepare_mlp_sync_batch(server.model_runner)


def new_keys(server: Server, step: Step, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the tokens that a step writes [rows, kv_heads, head_dim], in the model's dtype.

    Those of padded rows are finite. A quantised cache's are handed over so that quantising gives back what the slots
    hold: fp8 numbers times a scale are a dtype away from themselves.
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
