"""Checks that the page table has room for a request's keys, and that its visible pages exist in the pool.

A kernel that takes K and V by one pointer needs V whole pages behind K, with page ids that are higher by as many.
"""

from collections.abc import Iterator

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.meaning.call_pool import Pool
from attnfuzz.kernels.meaning.entry_point import Breach, RequestSpan, and_others
from attnfuzz.kernels.meaning.forms import tensor_of

_TABLE = "FlashInfer docstring of block_tables: [batch_size, max_num_pages_per_seq], the page table of the KV cache"
_RAW = "FlashInfer docstring of block_tables: the page table of the KV cache; no kernel compares its ids with the pool"


def table(call: Attention) -> Iterator[Breach]:
    """Yield lengths that exceed the columns, and ids outside the pool.

    Columns behind a request's last page may hold anything, and so may those of pages before every window.
    """
    if call.pool is None or call.table is None:
        return
    table = tensor_of(call.arguments, call.table)
    columns = table.shape[-1]
    spans = list(enumerate(call.spans[: table.shape[0]]))
    cut = [request for request, span in spans if span.kv_len > columns * call.pool.page_size]
    if cut:
        length = call.spans[cut[0]].kv_len
        text = (
            f"{call.lengths}[{cut[0]}] is {length}, but a row of {call.table} has {columns} columns, for {columns} "
            f"pages of {call.pool.page_size} tokens{and_others(cut)}: its other page ids are read past the end of its "
            "row"
        )
        yield Breach((call.lengths, call.table), text, _TABLE, cut[0])
    strays = {request: _strays(span, call.pool, call.window_left) for request, span in spans}
    astray = [request for request, columns in strays.items() if columns]
    if astray:
        at, columns_of_first = astray[0], strays[astray[0]]
        span, column = call.spans[at], columns_of_first[0]
        more = f" (and {len(columns_of_first) - 1} more of its ids)" if len(columns_of_first) > 1 else ""
        text = (
            f"{call.table}[{at}, {column}] is page {span.pages[column]}, which request {at} needs for its "
            f"{span.kv_len} keys, but {call.pool.name} has pages 0 to {call.pool.pages - 1}{more}{and_others(astray)}: "
            "the kernel accesses memory outside the pool"
        )
        yield Breach((call.table, call.pool.name), text, _RAW, at)


def _strays(span: RequestSpan, pool: Pool, window_left: int) -> list[int]:
    """List columns with pages outside the pool, among those that a query of the request sees."""
    seen = seen_columns(span, pool, window_left)
    return [at for at in seen if not 0 <= span.pages[at] < pool.pages]


def seen_columns(span: RequestSpan, pool: Pool, window_left: int) -> range:
    """Return the columns of the pages that a query of the request sees."""
    first_seen = max(0, span.kv_len - span.q_len - window_left) if window_left >= 0 else 0
    return range(first_seen // pool.page_size, len(span.pages))


_FLASHINFER = "FlashInfer 0.7.2: prefill.py, _check_paged_kv_non_interleaved"
_OFFSETS = f"{_FLASHINFER}: V's offsets account for where it is stored"


def halves(call: Attention) -> Iterator[Breach]:
    """Yield halves that the kernel can't find from K's pointer and shape, and page ids that miss them.

    Tensors on the meta device have no address to check.
    """
    if call.halves is None:
        return
    key, value = (tensor_of(call.arguments, name) for name in call.halves)
    gaps = [name for name in call.halves if not tensor_of(call.arguments, name).is_contiguous()]
    if gaps:
        text = f"{gaps[0]} is not contiguous: the kernel derives strides from shapes, and reads other elements"
        yield Breach(tuple(gaps), text, _FLASHINFER)
    elif key.numel() and not key.is_meta and not value.is_meta:
        yield from _misplaced(call, value.data_ptr() - key.data_ptr(), key[0].numel() * key.itemsize)


def _misplaced(call: Attention, apart: int, page: int) -> Iterator[Breach]:
    """Check V's place `apart` bytes behind K, whose pages have `page` bytes."""
    assert call.halves is not None
    if apart <= 0 or apart % page:
        text = f"{call.halves[1]} lies {apart} bytes behind {call.halves[0]}, not whole pages of {page} bytes"
        yield Breach(call.halves, f"{text}: it is rejected", _FLASHINFER)
        return
    pages = apart // page
    wrong = list(_wrong_ids(call, pages))
    if wrong:
        request, column, own = wrong[0]
        text = (
            f"{call.table}[{request}, 1, {column}] is page {own} of V, not {pages} behind that of K, where V begins"
            f"{and_others([each for each, _, _ in wrong])}"
        )
        yield Breach((str(call.table),), text, _OFFSETS, request)


def _wrong_ids(call: Attention, pages: int) -> Iterator[tuple[int, int, int]]:
    """Yield requests, the first column of each with a wrong id of V, and that id."""
    assert call.table is not None
    assert call.pool is not None
    table: torch.Tensor = tensor_of(call.arguments, call.table)
    for request, span in enumerate(call.spans[: table.shape[0]]):
        ids = table[request, 1].tolist()
        for column in seen_columns(span, call.pool, call.window_left):
            if ids[column] != span.pages[column] + pages:
                yield request, column, ids[column]
                break
