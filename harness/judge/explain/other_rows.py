"""Claims about mixed-up rows: another row's output, or this row with another row's keys or query."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from attnfuzz.harness.judge.explain.claim import POSITIONS, Claim
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.mistake import Mistake

_REQUESTS = 16
"""Maximum number of other requests whose keys are tried; each costs one attention."""

_QUERIES = 32
"""Maximum number of other tokens whose queries are tried."""


def other_rows(row: WrongRow) -> Iterator[Claim]:
    """Yield the closest answers among the token's heads, the request's tokens, and all rows."""
    tokens, heads, _ = row.answer.out.shape
    away = ((row.answer.out - row.out.to(torch.float64)) / row.truth.out_bound).square().mean(dim=-1)
    away[row.token, row.head] = torch.inf
    start = row.first_token
    own = range(start, start + row.q_len)
    if heads > 1:
        head = int(away[row.token].argmin())
        yield _answered(f"as if it were the row of head {head}", lambda each: (each.token, head), heads - 1)
    if len(own) > 1:
        inside = int(away[own.start : own.stop, row.head].argmin())
        words = f"as if it were the row of its request's token {inside}"
        yield _answered(words, lambda each: (each.first_token + inside, each.head), len(own) - 1)
        by = inside - row.token_in_request
        words = f"as if it were the row {abs(by)} {'after' if by > 0 else 'before'} it"
        yield _answered(words, lambda each: (each.token + by, each.head), len(own) - 1)
    if tokens > len(own):
        token, head = divmod(int(away.argmin()), heads)
        there = replace(row, token=token, head=head)
        if token not in own:
            words = f"as if it were the row of request {there.request}, token {there.token_in_request}, head {head}"
            yield _answered(words, lambda _: (token, head), tokens * heads - 1)
            by = token - row.token
            words = f"as if it were the row {abs(by)} {'after' if by > 0 else 'before'} it in the batch"
            yield _answered(words, lambda each: (each.token + by, each.head), tokens * heads - 1)


def _answered(words: str, place: Callable[[WrongRow], tuple[int, int]], tried: int) -> Claim:
    def answer(row: WrongRow) -> Alternative | None:
        token, head = place(row)
        if not 0 <= token < row.answer.out.shape[0] or head >= row.answer.out.shape[1]:
            return None
        return replace(row, token=token, head=head).truth

    return Claim(Mistake.OTHER_ROW, words, answer, POSITIONS, tried)


def other_queries(row: WrongRow) -> Iterator[Claim]:
    """Yield the row's own keys under the query of another head or token."""
    tokens, heads = row.answer.out.shape[:2]
    near = range(max(row.token - _QUERIES // 2, 0), min(row.token + _QUERIES // 2, tokens))
    for token in near:
        if token != row.token:
            by = token - row.token
            words = f"as if it had the query {abs(by)} {'after' if by > 0 else 'before'} its own in the batch"
            yield Claim(Mistake.OTHER_QUERY, words, _with_query(by, None), POSITIONS, len(near) + heads)
    for head in range(min(heads, _QUERIES)):
        if head != row.head:
            words = f"as if it had the query of head {head}"
            yield Claim(Mistake.OTHER_QUERY, words, _with_query(0, head), POSITIONS, len(near) + heads)


def _with_query(by: int, head: int | None) -> Callable[[WrongRow], Alternative | None]:
    def answer(row: WrongRow) -> Alternative | None:
        token, of = row.token + by, row.head if head is None else head
        if not 0 <= token < row.problem.query.shape[0]:
            return None
        query = row.problem.query[token : token + 1, of : of + 1]
        return row.alternative(replace(row.alone(row.seen), query=query))

    return answer


def other_keys(row: WrongRow) -> Iterator[Claim]:
    """Yield the keys and values of another KV head, or of the same places in another request."""
    problem, keys = row.problem, row.seen
    kv_heads = problem.key.shape[1]
    if kv_heads > 1:
        words = "as if query heads were assigned to KV heads in turn, not in groups"
        yield Claim(Mistake.OTHER_KV_HEAD, words, lambda each: _of_kv_head(each, each.head % kv_heads))
    for kv_head in range(kv_heads):
        if kv_head != row.kv_head:
            words = f"as if it read KV head {kv_head} instead of {row.kv_head}"
            yield Claim(Mistake.OTHER_KV_HEAD, words, _kv_head(kv_head), tried=kv_heads - 1)
    for words, roles in _ROLES.items():
        yield Claim(Mistake.OTHER_CACHE, words, _from_caches(*roles))
    others = [
        request for request, kv_len in enumerate(problem.kv_lens) if request != row.request and kv_len >= keys.stop
    ]
    for request in others[:_REQUESTS]:
        words = f"as if it read the keys of request {request}"
        yield Claim(Mistake.OTHER_REQUEST, words, _of_request(request), tried=len(others))


_ROLES = {
    "as if keys and values were exchanged": ("value", "key"),
    "as if the keys were the values, too": ("key", "key"),
    "as if the values were the keys, too": ("value", "value"),
}
"""The tensors that are taken for keys and for values."""


def _from_caches(key: str, value: str) -> Callable[[WrongRow], Alternative | None]:
    def answer(row: WrongRow) -> Alternative | None:
        own = row.alone(row.seen)
        if own.key.shape != own.value.shape:
            return None
        return row.alternative(replace(own, key=getattr(own, key), value=getattr(own, value)))

    return answer


def _kv_head(kv_head: int) -> Callable[[WrongRow], Alternative]:
    return lambda row: _of_kv_head(row, kv_head)


def _of_kv_head(row: WrongRow, kv_head: int) -> Alternative:
    return row.alternative(row.alone(row.seen, kv_head=kv_head))


def _of_request(request: int) -> Callable[[WrongRow], Alternative | None]:
    def answer(row: WrongRow) -> Alternative | None:
        if request >= len(row.problem.kv_lens) or row.problem.kv_lens[request] < row.seen.stop:
            return None
        return row.alternative(row.alone(row.seen, request=request))

    return answer
