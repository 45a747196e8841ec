"""Edits that remove one feature of a case and leave the rest as it is; the table of features names each."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from msgspec.structs import replace

from attnfuzz.reference.case import (
    BlockScales,
    Case,
    Granularity,
    Launch,
    Mask,
    Request,
    Step,
    Tombstone,
    Unused,
    ValueFamily,
    steps_in_chunks,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edits.cuts import graph_of, map_requests, tidy, with_q_len, with_requests
from attnfuzz.reference.edits.lengths import with_drafts
from attnfuzz.reference.edits.relation import run_only_the_other
from attnfuzz.reference.edits.steps import as_eager, with_surplus

Removal = Callable[[Case], Iterator[Case]]

_TRIED_ALONE = 4
"""Number of requests or steps tried alone: a failure that needs one of many occurs with one of these, or is rare."""


def geometry_with(**plain: Any) -> Removal:
    """Return the removal that sets these fields of the geometry."""
    return lambda case: iter((replace(case, geometry=replace(case.geometry, **plain)),))


def case_with(**plain: Any) -> Removal:
    """Return the removal that sets these fields of the case."""
    return lambda case: iter((replace(case, **plain),))


def part_with(part: str, **plain: Any) -> Removal:
    """Return the removal that sets these fields of the pages, scales, queries, views, serving or shared keys."""
    return lambda case: iter((replace(case, **{part: replace(getattr(case, part), **plain)}),))


def without(**chosen: Any) -> Removal:
    """Return the removal of one argument form, or of one event of a life."""
    ((name, one),) = chosen.items()

    def removal(case: Case) -> Iterator[Case]:
        yield replace(case, **{name: tuple(each for each in getattr(case, name) if each is not one)})

    return removal


def no_idle_steps(case: Case) -> Iterator[Case]:
    """Yield the case without idle steps."""
    yield replace(case, steps=tuple(step for step in case.steps if not step.idle))


def numbers_in(part: str) -> Removal:
    """Return the removal that puts numbers into unused memory of the pool; then normal ones, which differ from keys."""

    def removal(case: Case) -> Iterator[Case]:
        filled = replace(case, pages=replace(case.pages, **{part: Unused.NUMBERS}))
        yield filled
        yield replace(filled, values=ValueFamily.NORMAL)

    return removal


def pages_kept(case: Case) -> Iterator[Case]:
    """Yield a pool that keeps the pages that have left the window."""
    yield replace(case, pages=replace(case.pages, tombstone=Tombstone.NONE, window_tail=False))


def without_window(case: Case) -> Iterator[Case]:
    """Yield the case without window."""
    for kept in pages_kept(case):
        yield replace(kept, geometry=replace(case.geometry, window_left=-1, window_right=-1))


def no_right_window(case: Case) -> Iterator[Case]:
    """Yield a window that is open to the right, then one that ends after all keys."""
    for right in (-1, max(case.slot_lengths().values(), default=0)):
        yield replace(case, geometry=replace(case.geometry, window_right=right))


def causal(case: Case) -> Iterator[Case]:
    """Yield the case with a causal mask."""
    yield replace(case, mask=Mask.CAUSAL, geometry=replace(case.geometry, window_right=-1))


def no_window(case: Case) -> Iterator[Case]:
    """Yield the case without a window, then with a window longer than all keys."""
    yield from without_window(case)
    yield replace(case, geometry=replace(case.geometry, window_left=max(case.slot_lengths().values(), default=0)))


def wider_window(case: Case) -> Iterator[Case]:
    """Yield a window of two keys that still cuts some off, then one of half of the keys, then none."""
    longest = max(case.slot_lengths().values(), default=0)
    yield replace(one_key_more(case), geometry=replace(case.geometry, window_left=1))
    for window in (1, longest // 2):
        yield replace(case, geometry=replace(case.geometry, window_left=window))
    yield from no_window(case)


def no_sinks(case: Case) -> Iterator[Case]:
    """Yield the case without sinks; then with one more key for each request, since a single key has all the weight."""
    plain = replace(case, geometry=replace(case.geometry, sinks=False))
    yield plain
    yield one_key_more(plain)


def one_key_more(case: Case) -> Case:
    """Return `case` with a further key for each request that has keys."""
    return map_requests(case, _one_key_more)


def _one_key_more(request: Request) -> Request:
    return replace(request, kv_len=request.kv_len + 1) if request.kv_len else request


def no_fp8(case: Case) -> Iterator[Case]:
    """Yield a KV cache of the queries' dtype, with the scales of the cache; then without them."""
    of_tensor = replace(case.scales, granularity=Granularity.TENSOR, blocks=BlockScales.LINEAR)
    queries = replace(case.queries, kept=False)
    geometry = replace(case.geometry, kv_dtype=case.geometry.dtype)
    plain = replace(case, geometry=geometry, scales=of_tensor, queries=queries)
    yield plain
    yield replace(plain, scales=replace(of_tensor, k=1.0, v=1.0))


def in_fp32(case: Case) -> Iterator[Case]:
    """Yield queries in fp32, and a KV cache in fp32 too, unless it is in fp8."""
    geometry = case.geometry
    kv_dtype = DType.FLOAT32 if geometry.kv_dtype is geometry.dtype else geometry.kv_dtype
    yield replace(case, geometry=replace(geometry, dtype=DType.FLOAT32, kv_dtype=kv_dtype))


def multiples_of(vector: int) -> Removal:
    """Return the removal that raises head dims to the next multiples of `vector`, and to those after them.

    The default softmax scale changes with the head dim. It is exact in few bits for 16 and 64, but not for 8 and 32.
    """

    def removal(case: Case) -> Iterator[Case]:
        dims = case.geometry.head_dim_qk, case.geometry.head_dim_vo
        for more in (0, vector):
            qk, vo = (dim + -dim % vector + more for dim in dims)
            yield replace(case, geometry=replace(case.geometry, head_dim_qk=qk, head_dim_vo=vo))

    return removal


def no_groups(case: Case) -> Iterator[Case]:
    """Yield as many query heads as KV heads."""
    yield replace(case, geometry=replace(case.geometry, q_heads=case.geometry.kv_heads))


def one_kv_head(case: Case) -> Iterator[Case]:
    """Yield one KV head with the same group of query heads."""
    yield replace(case, geometry=replace(case.geometry, q_heads=case.geometry.group, kv_heads=1))


def equal_head_dims(case: Case) -> Iterator[Case]:
    """Yield a V head dim as large as that of K; a latent has its own."""
    if case.geometry.latent is None:
        yield replace(case, geometry=replace(case.geometry, head_dim_vo=case.geometry.head_dim_qk))


def no_graphs(case: Case) -> Iterator[Case]:
    """Yield every replay as an eager step over the same padded batch."""
    yield tidy(replace(case, steps=tuple(map(as_eager, case.steps))))


def no_padding(case: Case) -> Iterator[Case]:
    """Yield eager steps without padding, and replays of graphs captured for as many requests as they have.

    Then yield them with as many query tokens per request as the graph has room for, since the rest is padding too.
    """
    sizes: dict[object, set[int]] = {}
    for step in case.steps:
        if step.launch is Launch.REPLAY:
            sizes.setdefault(graph_of(step), set()).add(max(1, len(step.requests)))

    def fitted(step: Step) -> Iterator[Step]:
        if step.launch is Launch.EAGER:
            yield with_surplus(step, 0)
            return
        replayed = {max(1, len(step.requests))} if step.launch is Launch.REPLAY else sizes.get(graph_of(step), ())
        for size in sorted(replayed):
            yield replace(step, padded_tokens=size * step.tokens_per_request)

    exact = tidy(replace(case, steps=tuple(chain.from_iterable(map(fitted, case.steps)))))
    yield exact
    yield replace(exact, steps=tuple(map(_with_full_requests, exact.steps)))


def _with_full_requests(step: Step) -> Step:
    """Return a replay with as many query tokens for each request as its graph has room for."""
    if step.launch is not Launch.REPLAY:
        return step
    return replace(step, requests=tuple(with_q_len(each, step.tokens_per_request) for each in step.requests))


def one_step(case: Case) -> Iterator[Case]:
    """Yield each of the last steps alone, and the first, with the graphs that it needs."""
    running = [index for index, step in enumerate(case.steps) if step.launch is not Launch.CAPTURE]
    for index in dict.fromkeys((*running[::-1][:_TRIED_ALONE], *running[:1])):
        captures = [step for step in case.steps[:index] if step.launch is Launch.CAPTURE]
        yield tidy(replace(case, steps=(*captures, case.steps[index])))


def one_request(case: Case) -> Iterator[Case]:
    """Yield the KV of one request alone, in every step: the longest, the shortest, the first, the last."""
    lengths = case.slot_lengths()
    by_length = sorted(lengths, key=lengths.__getitem__)
    for slot in dict.fromkeys((*by_length[-1:], *by_length[:1], *list(lengths)[:1], *list(lengths)[-1:])):
        steps = (with_requests(step, tuple(each for each in step.requests if each.slot == slot)) for step in case.steps)
        yield tidy(replace(case, steps=tuple(steps)))


def equal_q_lens(case: Case) -> Iterator[Case]:
    """Yield each request of a step with the longest or the shortest q_len of the step, after the same prefix."""
    for choose in (max, min):
        yield replace(case, steps=tuple(_at_equal_q(step, choose) for step in case.steps))


def no_idle_requests(case: Case) -> Iterator[Case]:
    """Yield the case without requests that have no query tokens."""
    yield tidy(_kept(case, lambda request: request.q_len > 0))


def no_empty_kv(case: Case) -> Iterator[Case]:
    """Yield keys for each query token of the requests without keys; then drop these requests."""
    yield map_requests(case, lambda each: replace(each, kv_len=each.kv_len or each.q_len))
    yield tidy(_kept(case, lambda request: request.kv_len > 0))


def no_short_kv(case: Case) -> Iterator[Case]:
    """Yield at least as many keys as query tokens for each request that has keys."""
    yield map_requests(case, lambda each: replace(each, kv_len=max(each.kv_len, each.q_len) if each.kv_len else 0))


def no_relation(case: Case) -> Iterator[Case]:
    """Yield the first run alone, then the other."""
    yield replace(case, relation=None)
    yield from run_only_the_other(case)


def slots_in_order(case: Case) -> Iterator[Case]:
    """Yield the requests of each step in the order of their sequences."""
    steps = (replace(step, requests=tuple(sorted(step.requests, key=lambda each: each.slot))) for step in case.steps)
    yield replace(case, steps=tuple(steps))


def one_chunk(case: Case) -> Iterator[Case]:
    """Yield a chunk that holds the prefixes of all requests."""
    chunked = steps_in_chunks(case.steps, case.geometry)
    needed = max((len(step.requests) * step.longest_prefix for step in chunked), default=0)
    yield replace(case, chunk_capacity=max(needed, case.chunk_capacity))


def one_page(case: Case) -> Iterator[Case]:
    """Yield pages that hold all keys of a request; then as many keys of each request as one page holds."""
    size = case.geometry.page_size
    while size < max(case.slot_lengths().values(), default=0):
        size *= 2
    yield replace(case, geometry=replace(case.geometry, page_size=size))
    yield map_requests(case, partial(_at_most, case.geometry.page_size))


def full_pages(case: Case) -> Iterator[Case]:
    """Yield keys that fill the last page of each request; in some cases also pages of one token.

    These are yielded if a request has fewer keys than queries, which filling its page might change. Otherwise, more
    pages would be another feature.
    """
    size = case.geometry.page_size
    yield map_requests(case, lambda each: replace(each, kv_len=each.kv_len + -each.kv_len % size))
    if any(each.kv_len < each.q_len for step in case.steps for each in step.requests):
        yield replace(case, geometry=replace(case.geometry, page_size=1))


def no_full_pages(case: Case) -> Iterator[Case]:
    """Yield as many pages for each request with an empty slot in the last one; then one more key; then larger pages.

    Pages of one token are always full, and become pages of two. A request keeps a key for each of its queries.
    """
    old = case.geometry.page_size
    size = max(old, 2)
    yield map_requests(
        replace(case, geometry=replace(case.geometry, page_size=size)), partial(_without_full_page, old, size)
    )
    if size == old:
        yield map_requests(case, lambda each: each if each.kv_len % size else _one_key_more(each))
    yield replace(case, geometry=replace(case.geometry, page_size=2 * old))


def _without_full_page(old: int, new: int, request: Request) -> Request:
    pages, rest = divmod(request.kv_len, old)
    if rest or not pages:
        return request
    fewer = pages * new - 1
    enough = fewer >= min(request.q_len, request.kv_len)
    return replace(request, kv_len=fewer if enough else fewer + 2)


def one_key(case: Case) -> Iterator[Case]:
    """Yield one key of each request that has keys, and one query; then as many queries as before."""
    for single in (*one_query(case), case):
        yield map_requests(single, partial(_at_most, 1))


def at_most_keys(most: int) -> Removal:
    """Return the removal that leaves each request this many keys; then one fewer, which may not fill a page."""
    return lambda case: (map_requests(case, partial(_at_most, kept)) for kept in (most, most - 1))


def one_query(case: Case) -> Iterator[Case]:
    """Yield one query token of each request that has some, after the same prefix or over the same keys."""
    for fewer in with_drafts(case, 1):
        yield map_requests(fewer, lambda each: with_q_len(each, min(each.q_len, 1)))
        yield map_requests(fewer, lambda each: replace(each, q_len=min(each.q_len, 1)))


def _at_most(longest: int, request: Request) -> Request:
    return replace(request, kv_len=min(request.kv_len, longest))


def _kept(case: Case, keep: Callable[[Request], bool]) -> Case:
    return replace(case, steps=tuple(with_requests(step, tuple(filter(keep, step.requests))) for step in case.steps))


def _at_equal_q(step: Step, choose: Callable[[list[int]], int]) -> Step:
    asking = [request.q_len for request in step.requests if request.q_len]
    if step.mode.uniform or not asking:
        return step
    q_len = choose(asking)
    requests = tuple(with_q_len(each, q_len) if each.q_len else each for each in step.requests)
    return with_requests(step, requests)
