"""Claims about a wrong LSE of a right output: its base, its sign, and the keys that it counts."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import log

import torch

from attnfuzz.harness.judge.explain.claim import POSITIONS, Aspect, Claim
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.mistake import Mistake

_MOST_KEYS = 1 << 16
"""Number of keys above which parts of them are not tried."""


def lse_claims(row: WrongRow) -> Iterator[Claim]:
    """Yield claims about the LSE alone."""
    if row.lse is None:
        return
    base_e = "as if the LSE's base were e where base 2 is promised"
    yield _claim(Mistake.LSE_BASE, base_e, lambda each: each.truth.lse * log(2))
    base_2 = "as if the LSE's base were 2 where base e is promised"
    yield _claim(Mistake.LSE_BASE, base_2, lambda each: each.truth.lse / log(2))
    yield _claim(Mistake.LSE_SIGN, "as if the LSE were negated", lambda each: -each.truth.lse)
    largest = "as if the largest logit were missing from the LSE"
    yield _claim(Mistake.LSE_OF_A_PART, largest, lambda each: each.truth.lse - _peak(each))
    yield _claim(Mistake.LSE_OF_A_PART, "as if the LSE were the largest logit", _peak)
    yield from _parts(row, row.lse)
    heads_first = "as if the LSE were written as [heads, tokens]"
    yield Claim(Mistake.LSE_LAYOUT, heads_first, _heads_first, aspect=Aspect.LSE)


def _claim(mistake: Mistake, words: str, lse: Callable[[WrongRow], float]) -> Claim:
    def answer(row: WrongRow) -> Alternative:
        return replace(row.truth, lse=lse(row))

    return Claim(mistake, words, answer, aspect=Aspect.LSE)


def _heads_first(row: WrongRow) -> Alternative | None:
    """Return the LSE of the row that has this row's place in a tensor [heads, tokens]; None for this row itself."""
    tokens, heads = row.answer.lse.shape
    head, token = divmod(row.token * heads + row.head, tokens)
    if (token, head) == (row.token, row.head):
        return None
    return replace(row.truth, lse=row.answer.lse[token, head].item())


def _peak(row: WrongRow) -> float:
    assert row.answer.moments is not None
    return row.answer.moments.peak[row.token, row.head].item()


def _parts(row: WrongRow, lse: float) -> Iterator[Claim]:
    """Yield the LSE of the first or the last n keys, for the n that fits best."""
    if not 1 < len(row.seen) <= _MOST_KEYS or row.problem.sinks is not None:
        return
    weights, _ = row.weights_and_values
    logs = weights.clamp(min=1e-300).log() + row.truth.lse
    count = len(logs)
    first = int((logs.logcumsumexp(0) - lse)[:-1].abs().argmin()) + 1
    last = int((logs.flip(0).logcumsumexp(0) - lse)[:-1].abs().argmin()) + 1
    start, stop = row.seen.start, row.seen.stop
    for words, part in (
        (f"as if the LSE were that of the first {first:,} keys", range(start, start + first)),
        (f"as if the LSE were that of the last {last:,} keys", range(stop - last, stop)),
    ):
        yield Claim(Mistake.LSE_OF_A_PART, words, _of_part(row.request, part), POSITIONS, count, Aspect.LSE)


def _of_part(request: int, part: range) -> Callable[[WrongRow], Alternative | None]:
    def answer(row: WrongRow) -> Alternative | None:
        if row.request != request or part.start < row.seen.start or part.stop > row.seen.stop:
            return None
        weights, _ = row.weights_and_values
        inside = weights[part.start - row.seen.start : part.stop - row.seen.start]
        share = float(torch.as_tensor(inside.sum()).clamp(min=1e-300))
        return replace(row.truth, lse=row.truth.lse + log(share))

    return answer
