"""Stands for aten's FlashAttention for packed requests on CPUs: it answers from the reference.

Torch registers no such kernel for CPUs. This one checks what the one for CUDA checks (flash_api.cpp, mha_varlen_fwd).
"""

from itertools import pairwise
from typing import Any

import torch

from attnfuzz.reference.attention import attend
from attnfuzz.reference.problem import Problem

OPTIONS: list[dict[str, Any]] = []
"""The options of each call of the kernel."""


def _forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_q: torch.Tensor,
    cum_seq_k: torch.Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """aten::_flash_attention_forward on packed requests."""
    OPTIONS.append({name: each.tolist() if isinstance(each, torch.Tensor) else each for name, each in options.items()})
    _check(query, key, value, cum_seq_q, cum_seq_k)
    q_lens, kv_lens = (tuple(b - a for a, b in pairwise(ends.tolist())) for ends in (cum_seq_q, cum_seq_k))
    assert (max_q, max_k) == (max(q_lens), max(kv_lens))
    assert not dropout_p
    assert not return_debug_mask
    used = options.get("seqused_k")
    assert used is None or tuple(used.tolist()) == kv_lens
    assert options.get("num_splits") in (None, 1)
    left, right = options["window_size_left"], options["window_size_right"]
    causal = is_causal or right == 0
    masks = None if causal else tuple(torch.ones(*each, dtype=torch.bool) for each in zip(q_lens, kv_lens, strict=True))
    scale = options.get("scale")
    scale = query.shape[2] ** -0.5 if scale is None else scale
    answer = attend(Problem(query, key, value, q_lens, kv_lens, scale, window_left=left, causal=causal, masks=masks))
    lse = answer.lse.float().T.contiguous()
    empty = torch.empty(0, dtype=query.dtype)
    return answer.out.to(query.dtype), lse, torch.zeros(2, dtype=torch.uint64), empty, empty


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *ends: torch.Tensor) -> None:
    if any(each.dtype != torch.int32 for each in ends):
        raise RuntimeError("cu_seqlens must have dtype int32")
    if not all(each.is_contiguous() for each in ends):
        raise RuntimeError("cu_seqlens must be contiguous")
    if any(each.stride(-1) != 1 for each in (query, key, value)):
        raise RuntimeError("Input tensor must have contiguous last dimension")
    if len(ends[0]) < 2:
        raise RuntimeError("batch size must be positive")


def _forward_into(out: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    """aten::_flash_attention_forward_no_dropout_inplace."""
    answer, lse, *_ = _forward(*arguments, **options)
    out.copy_(answer)
    return lse


_LIBRARY = torch.library.Library("aten", "IMPL", "CPU")
_LIBRARY.impl("_flash_attention_forward", _forward)
_LIBRARY.impl("_flash_attention_forward_no_dropout_inplace", _forward_into)
