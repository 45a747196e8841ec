"""How well a row agrees with an alternative answer, and whether chance could have found one as good."""

from dataclasses import dataclass
from math import inf, isfinite, log

import torch

from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.reference.noise import ROUNDOFF

CERTAIN = 10.0
"""The gain that an alternative needs: odds of 20,000 to 1, as there are some dozens of hypotheses."""


@dataclass(frozen=True)
class CandidateFit:
    """An alternative beside the row. `closer`: by what factor its error is smaller than that of the right answer.

    `gain` is the logarithm of its likelihood ratio to the right answer, less that of the number of candidates. `within`
    says that the output lies within the judge's bound of it, `lse_within` the same of the LSE (None if there is none).
    """

    alternative: Alternative
    closer: float
    gain: float
    within: bool
    lse_within: bool | None


def fit(row: WrongRow, alternative: Alternative) -> CandidateFit | None:
    """Compare a row with an alternative; None if that is no better than the right answer.

    The likelihood is that of normal errors of an unknown size, so that its ratio is the ratio of the root mean squares
    to the power of Dv. Errors may be alike in size over a row's elements, as those of a wrong kernel are, or in
    proportion to the T1 bound, as roundings are: what counts is the lesser gain. The LSE counts as one more element.
    """
    seen, bound = row.out.to(torch.float64), row.truth.out_bound
    residual = seen - alternative.out
    if not bool(torch.isfinite(residual).all()):
        return None
    closer = min(
        _closer(row.error, residual, smallest_error(row, alternative.out, scale), scale)
        for scale in (bound, torch.full_like(bound, bound.mean().item()))
    )
    gain = residual.numel() * log(closer) - log(alternative.tried)
    lse_within = None
    if row.lse is not None and isfinite(row.lse) and isfinite(row.truth.lse):
        before, left = abs(row.lse - row.truth.lse), abs(row.lse - alternative.lse)
        lse_within = left <= alternative.lse_bound
        if isfinite(left):
            gain += log(max(before, row.truth.lse_bound) / max(left, row.truth.lse_bound))
    within = bool((residual.abs() <= alternative.out_bound).all())
    return CandidateFit(alternative, closer, gain, within, lse_within) if gain > CERTAIN else None


def smallest_error(row: WrongRow, out: torch.Tensor, scale: torch.Tensor) -> float:
    """The least error of `out` [Dv] that counts, over `scale`: a quarter of its rounding. Below it all is alike."""
    least = _size(ROUNDOFF[row.out.dtype] * out.abs() / scale) / 4
    return max(least, 1e-9)


def _closer(before: torch.Tensor, after: torch.Tensor, least: float, scale: torch.Tensor) -> float:
    return max(_size(before / scale), least) / max(_size(after / scale), least)


def _size(error: torch.Tensor) -> float:
    """Root mean square."""
    return error.square().mean().sqrt().item() if error.numel() else inf
