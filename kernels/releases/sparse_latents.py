"""Attention to lists of latents below a release: FlashMLA's and FlashInfer's functions on a native op."""

from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.sparse_ops import sparse_attention
from attnfuzz.kernels.releases.stand_ins import launch


def _attend(
    *,
    query: torch.Tensor,
    keys: torch.Tensor,
    indices: torch.Tensor,
    out: torch.Tensor,
    softmax_scale: float,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> None:
    """Attend to the latents in a list of slots for each row (FlashMLA).

    Heads behind the last one with a query are those that a backend adds, and not computed: 64 take seconds here.
    """
    used = query.any(-1).any(0).nonzero().flatten().tolist()
    heads = used[-1] + 1 if used else query.shape[1]
    sink = None if attn_sink is None else attn_sink[:heads]
    own = out[:, :heads]
    sparse_attention(query[:, :heads], keys, indices, own, softmax_scale, attn_sink=sink, topk_length=topk_length)


ATTEND: Final = Op("flash_mla_sparse", _attend, frozenset({"out"}))


def launch_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    indices: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    sink: torch.Tensor | None = None,
    lengths: torch.Tensor | None = None,
) -> None:
    """Launch ATTEND on lists `indices` [rows, 1, k] of `lengths` [rows]. Raises RuntimeError where FlashMLA does."""
    rows, lists, counts = len(query), len(indices), len(query) if lengths is None else len(lengths)
    if not rows == lists == counts:
        # csrc/api/sparse_fwd.h: KU_CHECK_SHAPE
        raise RuntimeError(f"q has {rows} rows, indices {lists}, topk_length {counts}")
    if indices.shape[-1] % 64:
        raise RuntimeError(f"lists of {indices.shape[-1]} are no multiple of 64")
    launch(
        ATTEND,
        query=query,
        keys=keys,
        indices=indices.squeeze(1),
        out=out,
        softmax_scale=scale,
        attn_sink=sink,
        topk_length=lengths,
    )


def decode_lists(
    *,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    kv_lora_rank: int,
    sparse_mla_top_k: int,
    bmm1_scale: float,
    **_: Any,
) -> torch.Tensor:
    """Stand in for FlashInfer's trtllm_batch_decode_with_kv_cache_mla on lists: rows [batch, 1, heads, dim].

    A row attends to as many entries of its list as it has keys, and to no more than a list has.
    """
    batch = len(query)
    if block_tables.shape != (batch, 1, sparse_mla_top_k) or len(seq_lens) != batch:
        # flashinfer/mla: _check_trtllm_gen_mla_shape
        given = f"block_tables {tuple(block_tables.shape)}, seq_lens {len(seq_lens)}"
        raise ValueError(f"query has {batch} rows, {given}, for lists of {sparse_mla_top_k}")
    out = torch.empty(*query.shape[:-1], kv_lora_rank, dtype=query.dtype)
    launch(
        ATTEND,
        query=query.squeeze(1),
        keys=kv_cache.flatten(0, 2)[:, None],
        indices=block_tables.squeeze(1),
        out=out.squeeze(1),
        softmax_scale=bmm1_scale,
        attn_sink=None,
        topk_length=seq_lens.clamp(max=sparse_mla_top_k).int(),
    )
    return out
