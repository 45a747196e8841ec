"""FlashMLA's attention to lists below a release: its sparse functions on a native op."""

from typing import Final

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
