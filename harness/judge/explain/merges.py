"""Claims about two parts of the keys that are each attended correctly, but merged with wrong weights.

With parts a and b of natural LSEs l_a and l_b, a merge gives w_a o_a + w_b o_b, where w_a / w_b = exp(l_a - l_b). An
LSE that is read in the wrong base, or swapped with the other part's, changes the exponent.
"""

from collections.abc import Callable, Iterator
from math import log

import torch

from attnfuzz.harness.judge.explain.claim import POSITIONS, RULE, Claim
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.mistake import Mistake

Exponent = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns the logarithm of w_a / w_b, from l_a and l_b."""

_LN2 = log(2)

_RULES: tuple[tuple[Mistake, str, Exponent], ...] = (
    (Mistake.MERGE_BASE, "by exp of LSEs in base 2", lambda a, b: (a - b) / _LN2),
    (Mistake.MERGE_BASE, "by exp2 of LSEs in base e", lambda a, b: (a - b) * _LN2),
    (Mistake.MERGE_BASE, "in base 2, although the first part's LSE is in base e", lambda a, b: a * _LN2 - b),
    (Mistake.MERGE_BASE, "in base 2, although the second part's LSE is in base e", lambda a, b: a - b * _LN2),
    (Mistake.MERGE_BASE, "in base e, although the first part's LSE is in base 2", lambda a, b: a / _LN2 - b),
    (Mistake.MERGE_BASE, "in base e, although the second part's LSE is in base 2", lambda a, b: a - b / _LN2),
    (Mistake.MERGE_WEIGHTS, "with each other's weights", lambda a, b: b - a),
    (Mistake.MERGE_WEIGHTS, "with equal weights", lambda a, b: (a - b) * 0),
    (Mistake.MERGE_WEIGHTS, "with the first part counted twice", lambda a, b: a - b + _LN2),
    (Mistake.MERGE_WEIGHTS, "with the second part counted twice", lambda a, b: a - b - _LN2),
)

_MOST_ELEMENTS = 1 << 20
"""Value elements of a row above which no boundary between two parts is tried."""


def merges(row: WrongRow) -> Iterator[Claim]:
    """Yield each rule, with the boundary before the step's own tokens, and where it fits best."""
    if len(row.seen) < 2 or len(row.seen) * row.out.shape[0] > _MOST_ELEMENTS or row.problem.sinks is not None:
        return
    seen, scale = row.out.to(torch.float64), row.truth.out_bound
    for mistake, how, exponent in _RULES:
        at = "the keys before the step's own tokens and those tokens"
        yield Claim(mistake, f"as if {at} were merged {how}", _at_own_tokens(exponent), RULE)
        away = ((_merged(row, exponent) - seen) / scale).square().sum(dim=-1)
        place = row.seen.start + 1 + int(away.argmin())
        words = f"as if the keys up to {place - 1} and those from {place} on were merged {how}"
        yield Claim(mistake, words, _at(row.request, place, exponent), POSITIONS, len(row.seen) - 1)


def _merged(row: WrongRow, exponent: Exponent) -> torch.Tensor:
    """Return the merged row for each boundary between two keys: [k - 1, Dv]."""
    weights, values = row.weights_and_values
    mass = weights.cumsum(0)[:-1].clamp(min=1e-300)
    rest = weights.flip(0).cumsum(0).flip(0)[1:].clamp(min=1e-300)
    sums = (weights.unsqueeze(-1) * values).cumsum(0)
    first, second = sums[:-1] / mass.unsqueeze(-1), (sums[-1] - sums[:-1]) / rest.unsqueeze(-1)
    lse = row.truth.lse
    share = torch.sigmoid(exponent(mass.log() + lse, rest.log() + lse)).unsqueeze(-1)
    return share * first + (1 - share) * second


def _at_own_tokens(exponent: Exponent) -> Callable[[WrongRow], Alternative | None]:
    return lambda row: _at_place(row, row.kv_len - row.q_len, exponent)


def _at(request: int, place: int, exponent: Exponent) -> Callable[[WrongRow], Alternative | None]:
    return lambda row: _at_place(row, place, exponent) if row.request == request else None


def _at_place(row: WrongRow, place: int, exponent: Exponent) -> Alternative | None:
    index = place - row.seen.start - 1
    if not 0 <= index < len(row.seen) - 1:
        return None
    return row.with_out(_merged(row, exponent)[index])
