"""The reference over a paged KV cache, with an LSE in base 2: the answer of fakes of FlashInfer's functions."""

from itertools import pairwise
from math import log
from typing import Any

import torch

from attnfuzz.reference.attention import attend
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.problem import Answer, Problem


def attend_paged(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    page_table: torch.Tensor,
    *,
    layout: KvLayout,
    q_lens: tuple[int, ...],
    kv_lens: tuple[int, ...],
    bmm1_scale: float,
    masks: tuple[torch.Tensor, ...] | None = None,
    **options: Any,
) -> Answer:
    """Attention over a paged KV cache; pages and table as in `gather_pages`, the rest as in `Problem`."""
    key, value = (gather_pages(pages, page_table, kv_lens, layout) for pages in (key_pages, value_pages))
    causal = masks is None
    return attend(Problem(query, key, value, q_lens, kv_lens, bmm1_scale, causal=causal, masks=masks, **options))


def attend_call(
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    scale: float,
    kv_layout: str = "NHD",
    mask: torch.Tensor | None = None,
    v_scale: float = 1.0,
    window_left: int = -1,
    soft_cap: float = 0.0,
    sinks: torch.Tensor | None = None,
    **_: Any,
) -> Answer:
    """Attention on the arguments of a `FunctionBackend`, those with a default if it has them."""
    ends, kv_lens = cum_seq_lens_q.tolist(), tuple(seq_lens.tolist())
    rows = [slice(first, end) for first, end in pairwise(ends)]
    return attend_paged(
        query[: ends[-1]],
        k_cache,
        v_cache,
        block_tables.long(),
        layout=KvLayout(kv_layout),
        q_lens=tuple(each.stop - each.start for each in rows),
        kv_lens=kv_lens,
        bmm1_scale=scale,
        bmm2_scale=v_scale,
        window_left=window_left,
        soft_cap=soft_cap,
        sinks=sinks,
        masks=None if mask is None else tuple(mask[own, :n] for own, n in zip(rows, kv_lens, strict=True)),
    )


def attend_one(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, **options: Any) -> Answer:
    """Attention of one request; `options` as in `Problem`."""
    return attend(Problem(query, key, value, (len(query),), (len(key),), scale, **options))


def gather_pages(
    pages: torch.Tensor, page_table: torch.Tensor, kv_lens: tuple[int, ...], layout: KvLayout
) -> torch.Tensor:
    """Packed tokens [sum(kv_lens), heads, dim] from a pool of pages.

    `pages` is [pages, heads, slots, dim] for HND and [pages, slots, heads, dim] for NHD. Row r of `page_table`
    [requests, width] lists the pages of request r; what lies past its last key is not read, in table or page.
    """
    by_slot = pages.transpose(1, 2) if layout is KvLayout.HND else pages
    page_size = by_slot.shape[1]
    indices = []
    for request, kv_len in enumerate(kv_lens):
        position = torch.arange(kv_len, device=pages.device)
        indices.append((page_table[request, position // page_size].long(), position % page_size))
    if not indices:
        return pages.new_empty((0, by_slot.shape[2], by_slot.shape[3]))
    return by_slot[torch.cat([page for page, _ in indices]), torch.cat([slot for _, slot in indices])]


def to_base2(lse: torch.Tensor) -> torch.Tensor:
    """A natural-log LSE in base 2, as FlashInfer's kernels return it."""
    return lse / log(2.0)
