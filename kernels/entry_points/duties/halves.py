"""K and V by one pointer: V lies whole pages behind K, and the page ids of V are as many above those of K."""

from collections.abc import Iterator

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.duties.pages import seen_columns
from attnfuzz.kernels.entry_points.duties.wording import and_others
from attnfuzz.kernels.entry_points.entry_point import Breach
from attnfuzz.kernels.entry_points.forms import tensor_of

_FLASHINFER = "FlashInfer 0.7.2: prefill.py, _check_paged_kv_non_interleaved"
_OFFSETS = f"{_FLASHINFER}: V's offsets account for where it is stored"


def breaches(call: Attention) -> Iterator[Breach]:
    """Halves that the kernel can't find from K's pointer and shape, and page ids that lead it elsewhere.

    Tensors on the meta device lie nowhere: of these it is not asked where.
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
    """V is `apart` bytes behind K, whose pages have `page` bytes."""
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
    """Requests, the first column of each whose id of V is wrong, and that id."""
    assert call.table is not None
    assert call.pool is not None
    table: torch.Tensor = tensor_of(call.arguments, call.table)
    for request, span in enumerate(call.spans[: table.shape[0]]):
        ids = table[request, 1].tolist()
        for column in seen_columns(span, call.pool, call.window_left):
            if ids[column] != span.pages[column] + pages:
                yield request, column, ids[column]
                break
