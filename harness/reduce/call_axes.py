"""Edits that drop requests, query tokens, keys, pages, heads and head dims of calls."""

from collections.abc import Iterator

from attnfuzz.harness.reduce.drop import Drop, without
from attnfuzz.harness.reduce.geometry import lower_dims
from attnfuzz.harness.reduce.meaning import Meaning
from attnfuzz.kernels.meaning import Role
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.edits.cuts import lower, without_blocks


def drop_requests(case: CallCase) -> Iterator[CallCase]:
    """Yield fewer requests. A dropped request is removed from every call, with its rows."""
    meaning = Meaning(case)
    every = frozenset(range(meaning.batch))
    for kept in without_blocks(tuple(every)):
        if kept:
            yield from without(meaning, [_requests(meaning, every.difference(kept))])


def drop_padding(case: CallCase) -> Iterator[CallCase]:
    """Yield fewer rows that belong to no request."""
    meaning = Meaning(case)
    owned = frozenset[int]().union(*(meaning.rows(request) for request in range(meaning.batch)))
    spare = frozenset(range(meaning.tokens)) - owned
    if owned:
        for kept in without_blocks(tuple(sorted(spare))):
            yield from without(meaning, [Drop({"tokens": spare.difference(kept)})])


def draft_fewer_tokens(case: CallCase) -> Iterator[CallCase]:
    """Drop the first query tokens of every request, if all have the same number."""
    meaning = Meaning(case)
    stated = (call.arguments.get("q_len_per_req") for call in case.calls)
    stride = max([each for each in stated if isinstance(each, int)] or [meaning.size("tokens per request")])
    for left in lower(stride, 1):
        gone = range(stride - left)
        rows = frozenset(row for request in range(meaning.batch) for row in sorted(meaning.rows(request))[: len(gone)])
        yield from without(
            meaning, [Drop({"tokens": rows, "tokens per request": gone}, scalars={"q_len_per_req": left})]
        )


def shorten_q(case: CallCase) -> Iterator[CallCase]:
    """Yield fewer query tokens of ragged requests, over the same keys or fewer: of all requests, or of one."""
    meaning = Meaning(case)
    if not any(meaning.of_role(Role.CUM_Q)):
        return
    lengths = {request: len(meaning.rows(request)) for request in range(meaning.batch)}
    for ceiling in lower(max(lengths.values(), default=0), 1):
        yield from _shorter(meaning, {request: max(0, length - ceiling) for request, length in lengths.items()})
    for request, length in lengths.items():
        for left in lower(length, 0):
            yield from _shorter(meaning, {request: length - left})


def _shorter(meaning: Meaning, gone: dict[int, int]) -> Iterator[CallCase]:
    """Drop the first query tokens of requests. Each remaining one sees the same keys."""
    rows = frozenset(row for request, count in gone.items() for row in sorted(meaning.rows(request))[:count])
    keys = {}
    for request, count in gone.items():
        for call in range(len(meaning.case.calls)):
            kv_len = meaning.kv_len(call, request)
            # The last keys, because keys in pages count from the first.
            keys[call, request] = range(max(0, kv_len - count), kv_len)
    yield from without(meaning, [Drop({"tokens": rows}, keys), Drop({"tokens": rows})])


def _requests(meaning: Meaning, gone: frozenset[int]) -> Drop:
    rows = frozenset[int]().union(*(meaning.rows(request) for request in gone))
    stay = frozenset[int]().union(*(meaning.rows(request) for request in range(meaning.batch) if request not in gone))
    keys = {
        (call, request): range(meaning.kv_len(call, request))
        for call in range(len(meaning.case.calls))
        for request in gone
    }
    return Drop({"requests": gone, "tokens": rows - stay}, keys)


def drop_columns(case: CallCase) -> Iterator[CallCase]:
    """Yield narrower page tables. Keys of pages in dropped columns are dropped too."""
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
    """Yield fewer keys: a lower maximum for all requests, then fewer of one request in one call."""
    meaning = Meaning(case)
    lengths = _lengths(meaning)
    for ceiling in lower(max(lengths.values(), default=0), 0):
        keys = {place: range(ceiling, kv_len) for place, kv_len in lengths.items() if kv_len > ceiling}
        yield from without(meaning, [Drop(keys=keys)])
    for place, kv_len in lengths.items():
        for left in lower(kv_len, 0):
            yield from without(meaning, [Drop(keys={place: range(left, kv_len)})])


def drop_pages(case: CallCase) -> Iterator[CallCase]:
    """Yield fewer pages in the pool, among those to which no request refers."""
    meaning = Meaning(case)
    used = {page for spans in meaning.spans for span in spans for page in span.pages}
    unused = tuple(page for page in range(meaning.size("pages")) if page not in used)
    for kept in ((), *without_blocks(unused)) if unused else ():
        yield from without(meaning, [Drop({"pages": frozenset(unused).difference(kept)})])


def shrink_pages(case: CallCase) -> Iterator[CallCase]:
    """Yield smaller pages, with the keys in the remaining slots."""
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
    """Return the keys of each (call, request) that has some."""
    places = ((call, request) for call in range(len(meaning.spans)) for request in range(len(meaning.spans[call])))
    return {place: length for place in places if (length := meaning.kv_len(*place))}


def _paged(meaning: Meaning) -> dict[tuple[int, int], int]:
    """Return the lengths of keys in pages."""
    calls = {site.call for site in meaning.of_role(Role.PAGE_TABLE)}
    return {place: length for place, length in _lengths(meaning).items() if place[0] in calls}


def drop_heads(case: CallCase) -> Iterator[CallCase]:
    """Yield fewer KV heads with their groups, the first or the last ones; then smaller groups."""
    meaning = Meaning(case)
    q_heads, kv_heads = meaning.size("q heads"), max(1, meaning.size("kv heads"))
    if not q_heads or q_heads % kv_heads:
        return
    group = q_heads // kv_heads
    for left in lower(kv_heads, 1):
        gone = kv_heads - left
        for kv, q in (
            (range(left, kv_heads), range(left * group, q_heads)),
            (range(gone), range(gone * group)),
        ):
            yield from without(meaning, [Drop({"kv heads": kv, "q heads": q})])
    for left in lower(group, 1):
        spare = frozenset(head for head in range(q_heads) if head % group >= left)
        yield from without(meaning, [Drop({"q heads": spare})])


def shrink_head_dims(case: CallCase) -> Iterator[CallCase]:
    """Yield smaller head dims; of a latent, each part by itself."""
    meaning = Meaning(case)
    ranks = {call.arguments.get("kv_lora_rank") for call in case.calls} - {None}
    if ranks:
        if len(ranks) == 1 and isinstance(rank := ranks.pop(), int):
            yield from without(meaning, _latent_dims(rank, meaning.size("qk dim")))
        return
    qk, vo = meaning.size("qk dim"), meaning.size("vo dim")
    for dim in lower_dims(qk):
        if qk == vo:
            yield from without(meaning, [Drop({"qk dim": range(dim, qk), "vo dim": range(dim, vo)})])
        else:
            yield from without(meaning, [Drop({"qk dim": range(dim, qk)})])
    if qk != vo:
        for dim in lower_dims(vo):
            yield from without(meaning, [Drop({"vo dim": range(dim, vo)})])


def _latent_dims(rank: int, qk: int) -> Iterator[Drop]:
    for left in lower_dims(rank):
        gone = range(left, rank)
        yield Drop({"qk dim": gone, "vo dim": gone}, scalars={"kv_lora_rank": left})
    for rope in lower_dims(qk - rank):
        yield Drop({"qk dim": range(rank + rope, qk)}, scalars={"qk_rope_head_dim": rope})


EDITS = (
    drop_requests,
    drop_padding,
    draft_fewer_tokens,
    shorten_q,
    drop_columns,
    shorten_kv,
    drop_pages,
    shrink_pages,
    drop_heads,
    shrink_head_dims,
)
