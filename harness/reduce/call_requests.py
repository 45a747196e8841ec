"""Edits that take requests and query tokens out of calls."""

from collections.abc import Iterator

from attnfuzz.harness.reduce.cuts import lower, without_blocks
from attnfuzz.harness.reduce.drop import Drop, without
from attnfuzz.harness.reduce.meaning import Meaning
from attnfuzz.kernels.entry_points import Role
from attnfuzz.reference.calls import CallCase


def drop_requests(case: CallCase) -> Iterator[CallCase]:
    """Fewer requests, each taken out of every call with its rows."""
    meaning = Meaning(case)
    every = frozenset(range(meaning.batch))
    for kept in without_blocks(tuple(every)):
        if kept:
            yield from without(meaning, [_requests(meaning, every.difference(kept))])


def drop_padding(case: CallCase) -> Iterator[CallCase]:
    """Fewer rows that belong to no request."""
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
    """Fewer query tokens of ragged requests, over the same keys or with as many dropped: in all, or in one."""
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
    """Drop first query tokens of requests; each remaining one sees the same keys."""
    rows = frozenset(row for request, count in gone.items() for row in sorted(meaning.rows(request))[:count])
    keys = {}
    for request, count in gone.items():
        for call in range(len(meaning.case.calls)):
            kv_len = meaning.kv_len(call, request)
            # The last keys: keys in pages count from the first.
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


EDITS = (drop_requests, drop_padding, draft_fewer_tokens, shorten_q)
