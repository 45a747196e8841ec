"""The reference over a paged KV cache, and with an LSE in base 2, as fakes of FlashInfer's functions answer."""

from math import log

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
    bmm2_scale: float = 1.0,
    window_left: int = -1,
    sinks: torch.Tensor | None = None,
    soft_cap: float = 0.0,
    masks: tuple[torch.Tensor, ...] | None = None,
) -> Answer:
    """Attention over a paged KV cache; pages and table as in `gather_pages`, the rest as in `Problem`."""
    key, value = (gather_pages(pages, page_table, kv_lens, layout) for pages in (key_pages, value_pages))
    return attend(
        Problem(
            query,
            key,
            value,
            q_lens,
            kv_lens,
            bmm1_scale,
            bmm2_scale,
            window_left=window_left,
            sinks=sinks,
            soft_cap=soft_cap,
            causal=masks is None,
            masks=masks,
        )
    )


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
