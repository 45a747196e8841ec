"""Edits that leave calls with fewer keys, and with smaller pools to keep them in."""

from collections.abc import Iterator

from attnfuzz.harness.reduce.cuts import lower, without_blocks
from attnfuzz.harness.reduce.drop import Drop, without
from attnfuzz.harness.reduce.meaning import Meaning
from attnfuzz.kernels.entry_points import Role
from attnfuzz.reference.calls import CallCase


def drop_columns(case: CallCase) -> Iterator[CallCase]:
    """Narrower page tables; keys of pages in dropped columns are gone."""
    meaning = Meaning(case)
    page = meaning.size("slots")
    every = range(meaning.size("columns"))
    for kept in without_blocks(tuple(every)):
        gone = frozenset(every).difference(kept)
        if kept:
            keys = {
                place: frozenset(key for key in range(kv_len) if key // page in gone)
                for place, kv_len in _paged(meaning).items()
            }
            yield from without(meaning, [Drop({"columns": gone}, keys)])


def shorten_kv(case: CallCase) -> Iterator[CallCase]:
    """Fewer keys: a lower ceiling for all requests, then fewer of one request in one call."""
    meaning = Meaning(case)
    lengths = _lengths(meaning)
    for ceiling in lower(max(lengths.values(), default=0), 0):
        keys = {place: range(ceiling, kv_len) for place, kv_len in lengths.items() if kv_len > ceiling}
        yield from without(meaning, [Drop(keys=keys)])
    for place, kv_len in lengths.items():
        for left in lower(kv_len, 0):
            yield from without(meaning, [Drop(keys={place: range(left, kv_len)})])


def drop_pages(case: CallCase) -> Iterator[CallCase]:
    """Fewer pages in the pool, of those that no request refers to."""
    meaning = Meaning(case)
    used = {page for spans in meaning.spans for span in spans for page in span.pages}
    unused = tuple(page for page in range(meaning.size("pages")) if page not in used)
    for kept in ((), *without_blocks(unused)) if unused else ():
        yield from without(meaning, [Drop({"pages": frozenset(unused).difference(kept)})])


def shrink_pages(case: CallCase) -> Iterator[CallCase]:
    """Smaller pages, with the keys in the remaining slots."""
    meaning = Meaning(case)
    page, smaller = meaning.size("slots"), 1
    while smaller < page:
        keys = {
            place: frozenset(key for key in range(kv_len) if key % page >= smaller)
            for place, kv_len in _paged(meaning).items()
        }
        yield from without(meaning, [Drop({"slots": range(smaller, page)}, keys)])
        smaller *= 2


def _lengths(meaning: Meaning) -> dict[tuple[int, int], int]:
    """Keys of each (call, request) that has some."""
    places = ((call, request) for call in range(len(meaning.spans)) for request in range(len(meaning.spans[call])))
    return {place: length for place in places if (length := meaning.kv_len(*place))}


def _paged(meaning: Meaning) -> dict[tuple[int, int], int]:
    """Lengths of keys in pages."""
    calls = {site.call for site in meaning.of_role(Role.PAGE_TABLE)}
    return {place: length for place, length in _lengths(meaning).items() if place[0] in calls}


EDITS = (drop_columns, shorten_kv, drop_pages, shrink_pages)
