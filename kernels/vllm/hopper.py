"""Hopper's kernels other than FlashInfer's wrappers: XQA's decodes, and the kernel that quantises queries to FP8."""

from collections.abc import Iterator
from typing import Any, Final

import torch

from attnfuzz.kernels.entry_points.decode import XQA_SEMAPHORES
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.ops import trtllm_batch_context_with_kv_cache, trtllm_batch_decode_with_kv_cache
from attnfuzz.kernels.planning.packed_masks import packed_masks
from attnfuzz.kernels.releases.stand_ins import current, entry

_WORD: Final = 16
"""Bits per word of a mask."""


def xqa_batch_decode_with_kv_cache(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    workspace_buffer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    kv_layout: str = "NHD",
    q_len_per_req: int = 1,
    mask: torch.Tensor | None = None,
    q_cu_seq_lens: torch.Tensor | None = None,
    **layer: Any,
) -> None:
    """Attend as XQA does: a query sees all keys before its request's drafts, and the drafts that its row of `mask` has.

    query is [tokens, q heads, dim]: q_len_per_req rows per request, or rows from q_cu_seq_lens[b] on (int32 [batch +
    1]). mask is uint16 [batch, q_len_per_req, words] or, with `q_cu_seq_lens`, [tokens, words]: bit j of a row is its
    draft j. `layer` are arguments of the native kernels (FlashInfer 0.7.2: decode.py).
    """
    batch = len(seq_lens) if q_cu_seq_lens is not None else query.shape[0] // q_len_per_req
    shared: dict[str, Any] = {
        "out": out,
        "query": query,
        "kv_cache": kv_cache,
        # The native kernel has its own semaphores, and leaves nonzero bytes in the workspace.
        "workspace_buffer": workspace_buffer[XQA_SEMAPHORES:],
        "block_tables": block_tables,
        "seq_lens": seq_lens,
        "kv_layout": kv_layout,
        **layer,
    }
    if mask is None:
        trtllm_batch_decode_with_kv_cache(max_seq_len=max_seq_len, q_len_per_req=q_len_per_req, **shared)
        return
    starts = torch.arange(batch + 1, dtype=torch.int32) * q_len_per_req if q_cu_seq_lens is None else q_cu_seq_lens
    packed, begins = packed_masks([*_masks(mask, starts.tolist(), seq_lens.tolist())])
    trtllm_batch_context_with_kv_cache(
        **shared,
        max_q_len=q_len_per_req,
        max_kv_len=max_seq_len,
        batch_size=batch,
        cum_seq_lens_q=starts,
        cum_seq_lens_kv=starts,
        packed_custom_mask=packed,
        mask_indptr=begins,
    )


def _masks(mask: torch.Tensor, starts: list[int], seq_lens: list[int]) -> Iterator[torch.Tensor]:
    """Yield the mask of each request over all of its keys, bool [q_len, kv_len], from the one over its drafts."""
    words = mask.flatten(0, -2).view(torch.int16).int()
    drafts = (words.unsqueeze(-1) >> torch.arange(_WORD) & 1).flatten(1).bool()
    for begin, end, kv_len in zip(starts[:-1], starts[1:], seq_lens, strict=False):
        q_len = end - begin
        of_drafts = drafts[begin:end, :q_len]
        before = torch.ones(q_len, max(0, kv_len - q_len), dtype=torch.bool)
        # In a request with fewer keys than queries, the first drafts see none.
        yield torch.cat((before, of_drafts), dim=1)[:, -kv_len:] if kv_len else before[:, :0]


def decode(*args: Any, **kwargs: Any) -> Any:
    """Stand in for FlashInfer's trtllm_batch_decode_with_kv_cache, which calls the function above for backend "xqa"."""
    function = "trtllm_batch_decode_with_kv_cache"
    if kwargs.get("backend") != "xqa":
        return entry(function)(*args, **kwargs)
    given = current(function).bound(function, args, kwargs).arguments
    # 0.6.14: decode.py:2476
    return entry(XQA.name)(**{name: value for name, value in given.items() if name in _OF_BOTH})


_OF_BOTH: Final = (
    *("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "max_seq_len", "bmm1_scale", "bmm2_scale"),
    *("window_left", "out", "sinks", "kv_layout", "enable_pdl", "q_len_per_req", "o_scale", "mask"),
)
"""The arguments that both functions have."""

XQA: Final = Op(
    "xqa_batch_decode_with_kv_cache", xqa_batch_decode_with_kv_cache, frozenset({"out", "workspace_buffer"})
)


def quantise_query(result: torch.Tensor, query: torch.Tensor, scale: torch.Tensor, group_shape: object = None) -> None:
    """Stand in for vLLM's static_scaled_fp8_quant: write query / scale to `result`, rounded to FP8."""
    assert group_shape is None, "queries have one scale"
    current(QUANTISE.name).launch(QUANTISE, {"result": result, "query": query, "scale": scale})


def static_scaled_fp8_quant(*, result: torch.Tensor, query: torch.Tensor, scale: torch.Tensor) -> None:
    """Write query / scale to `result`, rounded to FP8."""
    largest = torch.finfo(result.dtype).max
    result.copy_((query.float() / scale).clamp(-largest, largest).to(result.dtype))


QUANTISE: Final = Op("static_scaled_fp8_quant", static_scaled_fp8_quant, frozenset({"result"}))
"""vLLM's kernel, which is compiled for GPUs (csrc/quantization/w8a8/fp8/common.cu)."""
