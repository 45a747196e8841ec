"""Hypotheses about whose row it is: another row's answer, or this row's with keys of another head or request."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow

_REQUESTS = 16
"""Other requests whose keys are tried: each costs an answer of its own."""


def other_rows(row: WrongRow) -> Iterator[Alternative]:
    """The closest of the answers to the other heads of its token, the other tokens of its request, and all rows."""
    tokens, heads, _ = row.answer.out.shape
    away = ((row.answer.out - row.out.to(torch.float64)) / row.truth.out_bound).square().mean(dim=-1)
    away[row.token, row.head] = torch.inf
    start = sum(row.problem.q_lens[: row.request])
    own = range(start, start + row.problem.q_lens[row.request])
    if heads > 1:
        head = int(away[row.token].argmin())
        yield _answer(row, row.token, head, f"as if it were the row of head {head}", heads - 1)
    if len(own) > 1:
        token = start + int(away[own.start : own.stop, row.head].argmin())
        words = f"as if it were the row of its request's token {token - start}"
        yield _answer(row, token, row.head, words, len(own) - 1)
    if tokens > len(own):
        token, head = divmod(int(away.argmin()), heads)
        if token not in own:
            there = replace(row, token=token, head=head)
            own_token = token - sum(row.problem.q_lens[: there.request])
            words = f"as if it were the row of request {there.request}, token {own_token}, head {head}"
            yield _answer(row, token, head, words, tokens * heads - 1)


def _answer(row: WrongRow, token: int, head: int, words: str, tried: int) -> Alternative:
    return replace(replace(row, token=token, head=head).truth, words=words, tried=tried)


def other_keys(row: WrongRow) -> Iterator[Alternative]:
    """The keys and values of another KV head, or of the same places in another request."""
    problem, keys = row.problem, row.seen
    if not len(keys):
        return
    kv_heads = problem.key.shape[1]
    for kv_head in range(kv_heads):
        if kv_head != row.kv_head:
            words = f"as if it read KV head {kv_head} instead of {row.kv_head}"
            yield row.alternative(words, row.alone(keys, kv_head=kv_head), tried=kv_heads - 1)
    others = [
        request for request, kv_len in enumerate(problem.kv_lens) if request != row.request and kv_len >= keys.stop
    ]
    for request in others[:_REQUESTS]:
        words = f"as if it read the keys of request {request}"
        yield row.alternative(words, row.alone(keys, request=request), tried=len(others))
