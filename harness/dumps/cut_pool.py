"""The KV pool of a recorded call, cut to the pages that lengths refer to, with its layout kept."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from attnfuzz.harness.dumps.contents import BufferShelf
from attnfuzz.harness.dumps.recorded import ForeignTensor
from attnfuzz.harness.memory.allocation import dense_stride, extent
from attnfuzz.harness.memory.poison import poison
from attnfuzz.kernels.meaning import Parameter, RequestSpan
from attnfuzz.reference.calls import Buffer, View, pack
from attnfuzz.reference.dtypes import DType


@dataclass(frozen=True)
class PageMap:
    """The pages of a pool to keep, ascending ids, and their new numbers, in the same order.

    `total` is the pool's number of pages. With `spare`, one more page follows the kept ones and stands for every other
    page of the pool: it can be read, and belongs to no request.
    """

    total: int
    kept: tuple[int, ...]
    spare: bool

    @classmethod
    def of(cls, total: int, spans: Iterable[RequestSpan], table: torch.Tensor) -> "PageMap":
        """Keep the pages that lengths reach; the spare is for other pages in `table`."""
        kept = sorted({page for span in spans for page in span.pages if 0 <= page < total})
        ids = table.long()
        inside = ids[(ids >= 0) & (ids < total)]
        others = not bool(torch.isin(inside, torch.tensor(kept, dtype=torch.long)).all())
        # An empty pool has no address: a wild access would look like a null pointer.
        return cls(total, tuple(kept), others or not kept)

    @property
    def pages(self) -> int:
        """Pages of the new pool."""
        return len(self.kept) + self.spare

    def renumbered(self, table: torch.Tensor) -> torch.Tensor:
        """Renumber a page table. Ids outside of the pool stay as far outside."""
        ids = table.long()
        kept = torch.tensor(self.kept, dtype=torch.long)
        place = torch.searchsorted(kept, ids).clamp(max=max(len(kept) - 1, 0))
        known = kept[place] == ids if len(kept) else torch.zeros_like(ids, dtype=torch.bool)
        new = torch.where(known, place, len(kept))
        new = torch.where(ids >= self.total, ids - self.total + self.pages, new)
        return torch.where(ids < 0, ids, new).to(table.dtype)

    def covered(self, spans: Iterable[RequestSpan], page_size: int) -> torch.Tensor:
        """Mask of the slots with tokens of requests: bool [pages, page_size]."""
        slots = torch.zeros(self.pages, dtype=torch.long)
        places = {page: place for place, page in enumerate(self.kept)}
        for span in spans:
            for index, page in enumerate(span.pages):
                if page in places:
                    used = min(page_size, span.kv_len - index * page_size)
                    slots[places[page]] = max(int(slots[places[page]]), used)
        return torch.arange(page_size) < slots.unsqueeze(1)


def in_ranges(numbers: Sequence[int], most: int = 12) -> str:
    """Format ascending numbers as "3 to 5, 9": the first `most` ranges, then the count of the rest."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    words = [str(first) if first == last else f"{first} to {last}" for first, last in ranges[:most]]
    left = sum(last - first + 1 for first, last in ranges[most:])
    return ", ".join(words) + (f" and {left} more" if left else "")


ROOMY = 8
"""Span of a pool over its elements above which the gaps between its pages are closed."""


@dataclass(frozen=True)
class CutPool:
    """The tensors of a KV cache as arguments, the writes before the call, and notes."""

    parts: tuple[View, ...]
    writes: tuple[Buffer, ...]
    notes: tuple[str, ...]


def cut_pool(
    shelf: BufferShelf,
    prefix: str,
    parameters: Sequence[Parameter],
    sources: Sequence[ForeignTensor],
    pages: PageMap,
    covered: torch.Tensor,
) -> CutPool:
    """Put the pages of one cache tensor, or of a pair of them, into buffers whose names begin with `prefix`.

    `covered` marks the new pool's slots with tokens; all others are poisoned if contents are kept by value.
    Raises DumpError.
    """
    argument = parameters[0].name.partition("[")[0]
    pair = ["k_cache", "v_cache"] if "kv heads" in parameters[0].axes else ["ckv_cache", "kpe_cache"]
    names = [argument] if len(parameters) == 1 else pair
    shapes = [(pages.pages, *source.shape[1:]) for source in sources]
    forms = [
        _stride(parameter.name, shape, source)
        for parameter, shape, source in zip(parameters, shapes, sources, strict=True)
    ]
    strides = [stride for stride, _ in forms]
    reads = [
        partial(_gathered, shelf.known(each.name, source.dtype), source, pages, covered, each.axes.index("slots"))
        for each, source in zip(parameters, sources, strict=True)
    ]
    notes = tuple(note for _, note in forms if note)
    if len(sources) == 2 and _interleaved(shapes, strides, sources):
        # Both at once: [pages, 2, ...].
        shape, inner = (pages.pages, 2, *shapes[0][1:]), strides[0][1:]
        half = extent(shapes[0][1:], inner)
        whole = shelf.put(
            prefix + argument,
            shape,
            sources[0].dtype,
            lambda: torch.stack([read() for read in reads], dim=1),
            (strides[0][0], half, *inner),
        )
        parts = tuple(
            View(buffer=whole.buffer, shape=shapes[0], stride=strides[0], offset=index * half) for index in range(2)
        )
        notes += ("K and V have the strides of the two halves of one cache, and are treated as such.",)
        buffers = [whole]
    else:
        parts = tuple(
            shelf.put(prefix + name, shape, source.dtype, read, stride)
            for name, shape, source, read, stride in zip(names, shapes, sources, reads, strides, strict=True)
        )
        buffers = list(parts)
    writes = tuple(_poisoned_spare(shelf, view) for view in buffers if pages.spare and shelf.is_drawn(view))
    return CutPool(parts, writes, notes)


def _gathered(
    dtype: DType, source: ForeignTensor, pages: PageMap, covered: torch.Tensor, slot_axis: int
) -> torch.Tensor:
    """Gather the kept pages, with poison in every slot without a token."""
    pool = torch.empty((pages.pages, *source.shape[1:]), dtype=dtype.bits)
    if pages.kept:
        pool[: len(pages.kept)] = source.rows(torch.tensor(pages.kept)).view(dtype.bits)
    element = bytearray(poison(dtype.torch_dtype).content(dtype.itemsize))
    pool.movedim(slot_axis, 1)[~covered] = torch.frombuffer(element, dtype=dtype.bits)
    return pool.view(dtype.torch_dtype)


def _poisoned_spare(shelf: BufferShelf, view: View) -> Buffer:
    """Return a write that poisons the last page of a drawn pool, gaps included, which hold poison anyway."""
    dtype, inner = shelf.dtype(view), extent(view.shape[1:], view.stride[1:])
    return Buffer(
        name=view.buffer,
        dtype=dtype,
        size=inner,
        offset=(view.shape[0] - 1) * view.stride[0],
        bits=pack(poison(dtype.torch_dtype).content(inner * dtype.itemsize)),
    )


def _stride(name: str, shape: tuple[int, ...], source: ForeignTensor) -> tuple[tuple[int, ...], str]:
    """Return the strides of the cut pool, and a note if the recorded ones changed, else ""."""
    dense, stride = dense_stride(shape), source.stride
    if stride is None or stride == dense:
        return dense, ""
    page = extent(shape[1:], stride[1:])
    if stride[0] < page:
        return dense, f"{name} had the strides {list(stride)}, which the smaller pool does not keep: it is dense."
    if extent(shape, stride) <= ROOMY * shape[0] * page:
        return stride, ""
    return (page, *stride[1:]), f"The pages of {name} were {stride[0]:,} elements apart; they are adjacent now."


def _interleaved(
    shapes: Sequence[tuple[int, ...]], strides: Sequence[tuple[int, ...]], sources: Sequence[ForeignTensor]
) -> bool:
    """Return whether K and V are laid out as the two halves of each page of one cache."""
    half = extent(shapes[0][1:], strides[0][1:])
    return (
        shapes[0] == shapes[1]
        and strides[0] == strides[1]
        and sources[0].dtype == sources[1].dtype
        and strides[0][0] == 2 * half
    )
