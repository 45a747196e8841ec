"""Claims from a launch's metadata: the kernel used other page ids, lengths or strides than it was given.

`as_called` is the first of them: the kernel is right for its arguments, but the backend passed other arguments than the
case asks for. The others read the same tensors in another way.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from attnfuzz.harness.judge.explain.claim import POSITIONS, RULE, SCALED, Claim
from attnfuzz.harness.judge.explain.paged_call import PagedCall, extent
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.mistake import Mistake
from attnfuzz.reference.problem import Problem

_TILES = (8, 16, 32, 64, 128)
"""Numbers of keys for which kernels look up one page."""

_MOST_ELEMENTS = 1 << 24
"""Elements of a pool above which pages are not searched."""

_OTHERS = 16
"""Number of rows of a page table before and after a request's own that are tried instead."""

Pages = Callable[[PagedCall, int, int], torch.Tensor | None]
"""Returns the page ids that a kernel reads for (call, request, page count), or None where there are none."""


def paged_claims(row: WrongRow) -> Iterator[Claim]:
    """Yield the metadata of the row's call, read in other ways; nothing if the call is unknown."""
    found = _in_call(row)
    if found is None:
        return
    yield from _tables(found[0])
    yield from _strides(found[0])
    for more in sorted({1, 2, row.q_len}):
        words = f"as if the request were {more} key{'s' if more > 1 else ''} longer, for the causal limit too"
        yield Claim(Mistake.LENGTH, words, _longer(_by(more)), tried=3)
    words = "as if the request reached to the end of its last page"
    yield Claim(Mistake.LENGTH, words, _longer(lambda kv_len, page: -kv_len % page))


def as_called(row: WrongRow) -> Iterator[Claim]:
    """Yield the right answer to the call's arguments, where these differ from the case."""
    found = _in_call(row)
    differences = [] if found is None else list(_differences(row, *found))
    if differences:
        mistake = differences[0][0]
        words = "the kernel follows its call: " + ", and ".join(words for _, words in differences)
        page = None
        if mistake is Mistake.GIVEN_PAGES and found is not None:
            page = next(((column, page) for column, page, _ in _other_pages(row, *found)), None)
        yield Claim(mistake, words, _of_call, SCALED, page=page)


def _in_call(row: WrongRow) -> tuple[PagedCall, int] | None:
    """Return the call that produced a row, and the row's request in it, or None if unknown or under a mask."""
    at = None if row.call is None or row.problem.masks is not None else row.call.span_of(row.place)
    return None if row.call is None or at is None else (row.call, at)


def _differences(row: WrongRow, call: PagedCall, at: int) -> Iterator[tuple[Mistake, str]]:
    """Yield the differences between the call and the case, for this row in request `at` of the call."""
    problem, span = row.problem, call.spans[at]
    first = row.place - row.token_in_request
    if (span.first_row, span.q_len) != (first, row.q_len):
        rows = f"request {at} of the call has rows {span.first_row} to {span.first_row + span.q_len - 1}"
        yield Mistake.GIVEN_ROWS, f"{rows}, but rows {first} to {first + row.q_len - 1} are those of a request"
    if span.kv_len != row.kv_len:
        yield Mistake.GIVEN_LENGTH, f"its request {at} has {span.kv_len:,} keys instead of {row.kv_len:,}"
    # Pages of keys that the row does not see may have any contents, such as pages before a window.
    seen = slice(row.seen.start, min(span.kv_len, row.seen.stop))
    own = row.alone(range(seen.start, seen.stop))
    held = call.gathered(torch.tensor(span.pages), max(0, seen.stop), row.kv_head)
    if held is None or not (_same(held[0][seen], own.key) and _same(held[1][seen], own.value)):
        words = f"the pages of its request {at} do not hold the request's keys and values"
        yield Mistake.GIVEN_PAGES, next((each for *_, each in _other_pages(row, call, at)), words)
    if not _same(call.query[row.place, row.head], problem.query[row.token, row.head]):
        yield Mistake.GIVEN_QUERY, "its queries differ from those of the case"
    for name, passed, asked in (
        ("bmm1_scale", call.bmm1_scale, problem.bmm1_scale),
        ("bmm2_scale", call.bmm2_scale, problem.bmm2_scale),
    ):
        if passed != asked:
            yield Mistake.GIVEN_SCALE, f"{name} is {passed:.6g} instead of {asked:.6g}"
    if call.window_left != problem.window_left:
        yield Mistake.GIVEN_WINDOW, f"window_left is {call.window_left} instead of {problem.window_left}"
    if (call.sinks is None) != (problem.sinks is None):
        yield Mistake.GIVEN_SINKS, "it lacks the sinks" if call.sinks is None else "it has sinks, but the case has none"
    elif call.sinks is not None and problem.sinks is not None and not _same(call.sinks, problem.sinks):
        yield Mistake.GIVEN_SINKS, "its sinks differ from those of the case"


def _other_pages(row: WrongRow, call: PagedCall, at: int) -> Iterator[tuple[int, int, str]]:
    """Yield the columns and ids of a request's pages that don't hold its keys, with a description of each."""
    size, own = call.page_size, row.alone(range(row.kv_len)).key[:, 0]
    pages = call.spans[at].pages if call.key.numel() <= _MOST_ELEMENTS else ()
    for index, page in enumerate(pages):
        keys = own[index * size : (index + 1) * size]
        held = call.gathered(torch.tensor([page]), len(keys), row.kv_head)
        if held is None or not len(keys):
            break
        others = (held[0][:, 0].to(torch.float64) != keys.to(torch.float64)).any(dim=-1)
        if bool(others.all()):
            right = call.pages_with(keys, row.kv_head)
            where = f"they are on page {right[0]}" if right else "they are on no page"
            words = (
                f"column {index} of row {at} of its page table is page {page}, which holds none of its keys: {where}"
            )
            yield index, page, words
        elif bool(others.any()):
            slot = int(others.to(torch.int8).argmax())
            yield index, page, f"slot {slot} of page {page} does not hold key {index * size + slot} of its request {at}"


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one.to(other.device, torch.float64) == other.to(torch.float64)).all())


def _of_call(row: WrongRow) -> Alternative | None:
    """Return the right answer to the call's own arguments."""
    found = _in_call(row)
    if found is None:
        return None
    call, span = found[0], found[0].spans[found[1]]
    own = span.kv_len - span.q_len + row.place - span.first_row
    keys = call.gathered(torch.tensor(span.pages), min(max(own + 1, 0), span.kv_len), row.kv_head)
    if keys is None:
        return None
    start = max(own - call.window_left, 0) if call.window_left >= 0 else 0
    sinks = None if call.sinks is None else call.sinks[row.head : row.head + 1]
    problem = replace(
        _with_keys(row, keys[0][start:], keys[1][start:]),
        query=call.query[row.place : row.place + 1, row.head : row.head + 1].to(row.problem.query.device),
        bmm1_scale=call.bmm1_scale,
        bmm2_scale=call.bmm2_scale,
        sinks=None if sinks is None else sinks.to(row.problem.query.device),
    )
    return row.alternative(problem)


def _with_keys(row: WrongRow, key: torch.Tensor, value: torch.Tensor) -> Problem:
    """Return the row's problem over other keys, all of them visible."""
    alone = row.alone(range(0))
    device = row.problem.query.device
    return replace(alone, key=key.to(device), value=value.to(device), kv_lens=(len(key),))


def _over(row: WrongRow, call: PagedCall, pages: torch.Tensor | None, seen: range) -> Alternative | None:
    """Return the row's answer over the keys `seen` on some pages, or None where there are none."""
    keys = None if pages is None else call.gathered(pages, seen.stop, row.kv_head)
    if keys is None:
        return None
    return row.alternative(_with_keys(row, keys[0][seen.start :], keys[1][seen.start :]))


def _tables(call: PagedCall) -> Iterator[Claim]:
    """Yield claims that the page table is read in another way."""
    width, stride = call.table.shape[1], call.table.stride(0)
    if stride != width:
        words = "as if the rows of the page table followed each other without gaps"
        yield _from_pages(
            Mistake.TABLE_STRIDE, words, lambda each, b, count: _flat(each, b * each.table.shape[1], count)
        )
    words = "as if the rows of the page table were as wide as the request's own pages"
    yield _from_pages(Mistake.TABLE_STRIDE, words, lambda each, b, count: _flat(each, b * count, count))
    for by in (1, -1):
        words = f"as if page ids were {abs(by)} {'larger' if by > 0 else 'smaller'}"
        yield _from_pages(Mistake.PAGE_IDS, words, _shifted(by))
        words = f"as if the request's pages began {'after' if by > 0 else 'before'} its first in the page table"
        yield _from_pages(Mistake.PAGE_IDS, words, _columns(by))
    for by in range(-_OTHERS, _OTHERS + 1):
        if by and abs(by) < call.table.shape[0]:
            words = f"as if it had the row of the page table {abs(by)} {'after' if by > 0 else 'before'} its own"
            claim = _from_pages(Mistake.TABLE_ROW, words, _row(by))
            yield replace(claim, stakes=POSITIONS, tried=min(call.table.shape[0], 2 * _OTHERS))
    words = "as if the page table had 64-bit entries, read as 32-bit ones"
    yield _from_pages(Mistake.PAGE_IDS, words, _of_64_bits)
    for words, first in _IGNORED:
        yield _from_pages(Mistake.PAGES_IN_A_ROW, f"as if the page table were ignored: {words}", _numbered(first))
    words = "as if all pages of a request followed its first one"
    yield _from_pages(Mistake.PAGES_IN_A_ROW, words, _consecutive(None))
    for tile in _TILES:
        if tile > call.page_size:
            words = f"as if one page were looked up for every {tile} keys, and the next pages followed it"
            yield _from_pages(Mistake.PAGES_IN_A_ROW, words, _consecutive(tile))


def _from_pages(mistake: Mistake, words: str, pages: Pages) -> Claim:
    def answer(row: WrongRow) -> Alternative | None:
        found = _in_call(row)
        if found is None:
            return None
        call, at = found
        count = -(-row.seen.stop // call.page_size)
        taken, own = pages(call, at, count), _own(call, at, count)
        if mistake is not Mistake.CACHE_STRIDE and taken is not None and own is not None and torch.equal(taken, own):
            # The same pages: the fault is in their content, not in the lookup.
            return None
        return _over(row, call, taken, row.seen)

    return Claim(mistake, words, answer, RULE)


def _flat(call: PagedCall, start: int, count: int) -> torch.Tensor | None:
    """Return consecutive ids in the page table's memory, or None past its end."""
    table = call.table
    size = (table.shape[0] - 1) * table.stride(0) + table.shape[1]
    return table.as_strided((size,), (1,))[start : start + count] if start + count <= size else None


def _own(call: PagedCall, request: int, count: int) -> torch.Tensor | None:
    inside = request < call.table.shape[0] and count <= call.table.shape[1]
    return call.table[request, :count] if inside else None


def _shifted(by: int) -> Pages:
    def pages(call: PagedCall, request: int, count: int) -> torch.Tensor | None:
        own = _own(call, request, count)
        return None if own is None else own + by

    return pages


def _columns(by: int) -> Pages:
    return lambda call, b, count: _flat(call, b * call.table.stride(0) + by, count) if b or by > 0 else None


def _row(by: int) -> Pages:
    return lambda call, b, count: _own(call, b + by, count) if b + by >= 0 else None


def _consecutive(tile: int | None) -> Pages:
    def pages(call: PagedCall, request: int, count: int) -> torch.Tensor | None:
        own = _own(call, request, count)
        if own is None:
            return None
        places = torch.arange(count, device=own.device)
        in_tile = count if tile is None else max(tile // call.page_size, 1)
        return own[places // in_tile * in_tile] + places % in_tile

    return pages


def _of_64_bits(call: PagedCall, request: int, count: int) -> torch.Tensor | None:
    """Return the pages in a table of int64 for a kernel that takes it for one of int32, on a little-endian machine."""
    halves = torch.stack((call.table, torch.zeros_like(call.table)), dim=-1).flatten()
    start = request * call.table.shape[1]
    return halves[start : start + count]


def _numbered(first: Callable[[PagedCall, int], int]) -> Pages:
    return lambda call, request, count: torch.arange(count) + first(call, request)


def _pages_before(call: PagedCall, request: int) -> int:
    return sum(len(span.pages) for span in call.spans[:request])


_IGNORED: tuple[tuple[str, Callable[[PagedCall, int], int]], ...] = (
    ("each request has the pages after those of the requests before it", _pages_before),
    ("the pages of each request begin at its row times the columns", lambda call, b: b * call.table.shape[1]),
    ("the pages of each request begin at page 0", lambda _, __: 0),
)
"""Where the pages of a request begin for a kernel that reads no page table, in words and as a function."""


def _strides(call: PagedCall) -> Iterator[Claim]:
    """Yield claims that queries or caches are read as if contiguous, or values at the keys' strides."""
    if not call.query.is_contiguous():
        words = "as if the queries were contiguous"
        yield Claim(Mistake.QUERY_STRIDE, words, _packed_query(heads=True))
        words = "as if rows of queries followed each other without gaps"
        yield Claim(Mistake.QUERY_STRIDE, words, _packed_query(heads=False))
    if not all(cache.is_contiguous() for _, cache in call.caches):
        yield Claim(Mistake.CACHE_STRIDE, "as if the KV cache were contiguous", _of_cache(PagedCall.dense))
    if call.page_size > 1 and call.key.shape[2] > 1:
        words = "as if pages were reshaped, not permuted, to exchange the axes of slots and KV heads"
        yield Claim(Mistake.CACHE_STRIDE, words, _of_cache(PagedCall.reshaped))


def _packed_query(*, heads: bool) -> Callable[[WrongRow], Alternative | None]:
    def answer(row: WrongRow) -> Alternative | None:
        if row.call is None:
            return None
        query = row.call.query
        head = query.shape[2] if heads else query.stride(1)
        start = row.place * query.shape[1] * head + row.head * head
        flat = query.as_strided((extent(query),), (1,))
        if start + query.shape[2] > len(flat):
            return None
        taken = flat[start : start + query.shape[2]].view(1, 1, -1).to(row.problem.query.device)
        return row.alternative(replace(row.alone(row.seen), query=taken))

    return answer


def _of_cache(change: Callable[[PagedCall], PagedCall | None]) -> Callable[[WrongRow], Alternative | None]:
    """Return the answer over the row's own pages of a cache that is read in another way."""

    def answer(row: WrongRow) -> Alternative | None:
        other = None if row.call is None else change(row.call)
        return None if other is None else _from_pages(Mistake.CACHE_STRIDE, "", _own).answer(replace(row, call=other))

    return answer


More = Callable[[int, int], int]
"""Returns the number of keys by which a request is longer, from its length and the page size."""


def _by(more: int) -> More:
    return lambda _, __: more


def _longer(more_than: More) -> Callable[[WrongRow], Alternative | None]:
    def answer(row: WrongRow) -> Alternative | None:
        found = _in_call(row)
        if found is None:
            return None
        call, at = found
        more = more_than(row.kv_len, call.page_size)
        stop = row.seen.stop + more
        start = row.seen.start + more if row.seen.start else 0
        return _over(row, call, _own(call, at, -(-stop // call.page_size)), range(start, stop))

    return answer
