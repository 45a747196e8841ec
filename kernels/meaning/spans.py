"""The requests of a call, from its metadata."""

from collections.abc import Sequence

import torch

from attnfuzz.kernels.meaning.entry_point import RequestSpan

Rows = tuple[int, int]
"""First query row of a request, and its number of rows."""


def integers(tensor: torch.Tensor) -> list[int]:
    """Return the numbers in a tensor of one axis and any dtype."""
    values: list[int] = tensor.to(torch.int64).tolist()
    return values


def uniform_rows(batch: int, q_len: int) -> list[Rows | None]:
    """Return the rows of requests of equal q length."""
    return [(request * q_len, q_len) for request in range(batch)]


def cumulative_rows(cumulative: torch.Tensor, batch: int) -> list[Rows | None]:
    """Return the rows between the entries of cumulative lengths [batch + 1]; None for a missing entry."""
    ends = integers(cumulative)
    return [
        (ends[request], ends[request + 1] - ends[request]) if request + 1 < len(ends) else None
        for request in range(batch)
    ]


def paged_spans(
    rows: Sequence[Rows | None], kv_lens: torch.Tensor, tables: torch.Tensor, page_size: int
) -> tuple[RequestSpan, ...]:
    """List spans over pages: kv_lens [requests], tables [requests, columns], or those of K [requests, 2, columns]."""
    lengths = integers(kv_lens)
    of_keys = tables if tables.ndim == 2 else tables[:, 0]
    spans = []
    for request, own in enumerate(rows):
        first_row, q_len = own or (0, 0)
        kv_len = lengths[request] if request < len(lengths) else 0
        needed = max(0, -(-kv_len // page_size))
        pages = integers(of_keys[request, :needed]) if request < len(of_keys) else []
        inside = own is not None and request < len(lengths) and request < len(of_keys) and len(pages) == needed
        spans.append(RequestSpan(first_row, q_len, kv_len, tuple(pages), inside=inside))
    return tuple(spans)


def packed_spans(
    rows: Sequence[Rows | None], kv_lens: torch.Tensor, first_keys: torch.Tensor
) -> tuple[RequestSpan, ...]:
    """List spans over packed keys: request b has kv_lens[b] of them, from row first_keys[b] on."""
    lengths, firsts = integers(kv_lens), integers(first_keys)
    spans = []
    for request, own in enumerate(rows):
        first_row, q_len = own or (0, 0)
        inside = own is not None and request < len(lengths) and request < len(firsts)
        kv_len, first = (lengths[request], firsts[request]) if inside else (0, 0)
        spans.append(RequestSpan(first_row, q_len, kv_len, first_key=first, inside=inside))
    return tuple(spans)
