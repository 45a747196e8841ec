"""Comparing a row's result with a claim's prediction: one vote for or against the claim."""

from enum import IntEnum
from math import isfinite, log

import torch

from attnfuzz.harness.judge.explain.claim import Aspect
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.noise import ROUNDOFF

CERTAIN = 10.0
"""The gain that a claim needs on the row on which it is fitted: odds of 20,000 to 1, as there are dozens of claims."""

_CERTAIN_LSE = 1.0
"""The gain needed for an LSE alone, which is a single number. Further runs refute chance matches."""


class Vote(IntEnum):
    """A row's vote on a claim: FOR if the result is wrong as predicted, AGAINST if it contradicts, else NEUTRAL."""

    AGAINST = -1
    NEUTRAL = 0
    FOR = 1


def vote(row: WrongRow, alternative: Alternative, aspect: Aspect, *, tried: int = 1) -> Vote:
    """Return the vote of `row` on a claim that predicts `alternative`, chosen among `tried`."""
    return _on_lse(row, alternative, tried) if aspect is Aspect.LSE else _on_out(row, alternative, tried)


def _on_out(row: WrongRow, alternative: Alternative, tried: int) -> Vote:
    seen = row.out.to(torch.float64)
    residual = (seen - alternative.out).abs()
    # A prediction of NaN does not predict a finite number.
    if not bool((residual <= alternative.out_bound).all()):
        return Vote.AGAINST
    gain = _gain(row, alternative, residual) - log(tried)
    if gain > CERTAIN:
        return Vote.FOR
    if gain < -CERTAIN:
        return Vote.AGAINST
    # Outside the bound around the right answer, and inside the bound around this one.
    fails = bool((row.error.abs() > row.truth.out_bound).any())
    return Vote.FOR if fails and tried == 1 else Vote.NEUTRAL


def _on_lse(row: WrongRow, alternative: Alternative, tried: int) -> Vote:
    assert row.lse is not None
    if not isfinite(row.lse) or not abs(row.lse - alternative.lse) <= alternative.lse_bound:
        return Vote.AGAINST
    gain = log(max(abs(row.lse - row.truth.lse), 1e-30) / row.truth.lse_bound) - log(tried)
    if gain > (_CERTAIN_LSE if tried > 1 else 0.0):
        return Vote.FOR
    return Vote.NEUTRAL


def lse_agrees(row: WrongRow, alternative: Alternative) -> bool | None:
    """Return whether the LSE is as predicted, or None if there is none, or right and predicted LSE are equal."""
    if row.lse is None or not isfinite(row.lse) or not isfinite(row.truth.lse):
        return None
    if abs(alternative.lse - row.truth.lse) <= alternative.lse_bound + row.truth.lse_bound:
        return None
    return abs(row.lse - alternative.lse) <= alternative.lse_bound


def lse_fits(row: WrongRow, alternative: Alternative) -> bool:
    """Return whether the LSE, if there is one, is as predicted."""
    return row.lse is None or row.lse == alternative.lse or abs(row.lse - alternative.lse) <= alternative.lse_bound


def _gain(row: WrongRow, alternative: Alternative, residual: torch.Tensor) -> float:
    """Return the log likelihood ratio of the claim to the right answer.

    Errors are assumed to be normal with unknown size, so the ratio is that of the root mean squares to the power of Dv.
    Sizes may be equal over a row's elements, as for a wrong kernel, or proportional to the T1 bound, as for roundings:
    the lower gain counts. An LSE that agrees counts as one more element.
    """
    bound = row.truth.out_bound
    closer = min(
        _closer(row.error, residual, smallest_error(row, alternative.out, scale), scale)
        for scale in (bound, torch.full_like(bound, bound.mean().item()))
    )
    gain = residual.numel() * log(closer)
    if row.lse is not None and isfinite(row.lse) and isfinite(row.truth.lse) and isfinite(alternative.lse):
        before, left = abs(row.lse - row.truth.lse), abs(row.lse - alternative.lse)
        gain += max(0.0, log(max(before, row.truth.lse_bound) / max(left, row.truth.lse_bound)))
    return gain


def smallest_error(row: WrongRow, out: torch.Tensor, scale: torch.Tensor) -> float:
    """Return the smallest error of `out` [Dv] that counts, over `scale`: a quarter of its rounding.

    Smaller errors count as equal.
    """
    least = _size(ROUNDOFF[row.out.dtype] * out.abs() / scale) / 4
    return max(least, 1e-9)


def _closer(before: torch.Tensor, after: torch.Tensor, least: float, scale: torch.Tensor) -> float:
    return max(_size(before / scale), least) / max(_size(after / scale), least)


def _size(error: torch.Tensor) -> float:
    """Return the root mean square."""
    return error.square().mean().sqrt().item()
