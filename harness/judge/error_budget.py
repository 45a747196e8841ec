"""The error budget of a correct kernel, from a noise model and the moments of the answer.

Sources of error and their effects on an output o = sum_j p_j v_j (p: softmax weights, u: unit roundoffs):
- weights rounded for the second product: sum_j p_j eps_j v_j, |eps_j| <= u_P. Independent errors give u_P^2 sum p^2 v^2
  (Higham and Mary, 2019). Equal weights round alike and give up to u_P |o|: `alike` is the share of that which
  applies. Weights near zero have an absolute error instead.
- logits, exp, soft cap, a rounded denominator: sum_j p_j (v_j - o) delta_j.
- fp32 sums of n terms: each partial sum is rounded, so errors grow like sqrt(n) u, or like n u if equal terms stay on
  one side of a rounding boundary (Blanchard, Higham and Higham, 2021). Calibration measures the first; the second
  follows from the format (`ErrorBudget.step`).
- partial results weighted by exp(lse_part - lse), as in flash-decoding and sinks: the fp32 roundings of both sides.
- values rounded for the second product: as weights, but the same for all queries.
- rounding to the output's dtype, once and once more per merge; a merge adds partial outputs, whose size is about
  sqrt(sum p^2 v^2) rather than |o|.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from math import log, sqrt
from typing import Any

import torch

from attnfuzz.reference.key_shares import KeyShares
from attnfuzz.reference.noise import ROUNDOFF, SMALLEST_STEP, NoiseModel
from attnfuzz.reference.problem import Answer, Moments, Problem

UNIFORM = 0.18
"""Mean square relative error over u^2 of rounding to nearest, for a log-uniform mantissa: 1 / (8 ln 2)."""

_LARGEST_GAP = 2.0**-24
"""Gap above which weights don't count as exact: keys below the largest logit add an error of at most the gap."""

_TOKENS_AT_ONCE = 4096

_SUBNORMAL = 2.0**-149
"""The smallest number of fp32. A kernel that flushes none has this error in weights below 2^-126."""

FP32 = ROUNDOFF[torch.float32]
"""Exponents are computed in fp32 whatever dtype sums have, and no sum is wider than fp32."""


@dataclass(frozen=True)
class ErrorBudget:
    """The error of a correct kernel on one problem, whose output of dtype `out_dtype` was rounded `roundings` times.

    `alpha` is the probability of a false alarm that one tier may spend on the output. Tensors are fp64: [T, Hq,
    Dv] per element, or [T, Hq] per row (then `row` in the name). With `shares`, each rank has rounded its part.
    """

    problem: Problem
    answer: Answer
    noise: NoiseModel
    out_dtype: torch.dtype
    roundings: int
    alpha: float
    shares: KeyShares | None = None

    @cached_property
    def moments(self) -> Moments:
        """The moments of the answer, which must have been computed."""
        assert self.answer.moments is not None
        return self.answer.moments

    @cached_property
    def keys(self) -> torch.Tensor:
        """Visible keys, at least 1: [T, 1]."""
        return self.answer.visible.clamp(min=1).to(torch.float64).unsqueeze(-1)

    @cached_property
    def tail(self) -> float:
        """Bound on an error in standard deviations, for M elements: sqrt(2 ln(2 M / alpha))."""
        return sqrt(2 * log(2 * max(self.answer.out.numel(), 1) / self.alpha))

    @cached_property
    def deviations(self) -> torch.Tensor:
        """Bound on a sum of n independent bounded errors, in root mean squares: [T, 1].

        Like `tail` (Hoeffding's inequality), but at most sqrt(n), by Cauchy and Schwarz. It does not apply to
        quantities that the noise model states as a root mean square: the error of one logit has no bound.
        """
        return self.key_root.clamp(max=self.tail)

    @cached_property
    def key_root(self) -> torch.Tensor:
        """Square root of `keys`: [T, 1]."""
        return self.keys.sqrt()

    @cached_property
    def size(self) -> torch.Tensor:
        """Absolute value of the answer, [T, Hq, Dv]."""
        return self.answer.out.abs()

    @cached_property
    def power_root(self) -> torch.Tensor:
        """Square root of `Moments.power`, [T, Hq, Dv]."""
        return self.moments.power.sqrt()

    @cached_property
    def spread_root(self) -> torch.Tensor:
        """Square root of `Moments.spread`, [T, Hq, Dv]."""
        return self.moments.spread.sqrt()

    @cached_property
    def alike(self) -> torch.Tensor:
        """Degree to which weights round alike: 1 if equal, 0 once spread over a few grid steps of 2 u_P; [T, Hq]."""
        return torch.exp(-0.5 * (self.moments.gap / (4 * self.noise.probabilities)) ** 2)

    @cached_property
    def exact_weights(self) -> torch.Tensor:
        """Whether rows have equal visible logits, except for those too low to matter: bool [T, Hq]."""
        return self.moments.gap <= _LARGEST_GAP

    @property
    def step(self) -> float:
        """The largest error of one addition to a running sum, relative to the sum.

        NoiseModel.accumulate, but at least fp32's roundoff: a smaller one is a measured root mean square, which doesn't
        bound sums whose every addition is rounded to the same side.
        """
        return max(self.noise.accumulate, FP32)

    @cached_property
    def row_logit_variance(self) -> torch.Tensor:
        """Mean square of delta_j, the relative error of an unnormalised weight before it is rounded; [T, Hq]."""
        noise, moments = self.noise, self.moments
        independent = noise.exponential**2 + UNIFORM * noise.row_sum**2
        result = ((noise.logits + noise.logit_scale) * moments.magnitude) ** 2 + self.row_exponent_error**2
        if noise.shifted:
            result = result + (noise.shifted * (self.row_below_sink + 2 * moments.magnitude)) ** 2
        if self.problem.soft_cap:
            result = result + (noise.tanh * moments.magnitude.clamp(max=self.problem.soft_cap)) ** 2
        return (result + independent) * self._beyond_linear(result) ** 2

    @cached_property
    def row_logit_deviation(self) -> torch.Tensor:
        """Root mean square of delta_j, [T, Hq]."""
        return self.row_logit_variance.sqrt()

    @staticmethod
    def _beyond_linear(variance: torch.Tensor) -> torch.Tensor:
        """Return the error of exp over that of its argument: (exp(x) - 1) / x, for x of 3 standard deviations."""
        x = (3 * variance.sqrt()).clamp_(min=1e-6, max=50)
        return torch.expm1(x) / x

    @cached_property
    def row_below_sink(self) -> torch.Tensor:
        """Distance of the largest visible logit from a larger sink, 0 without one; [T, Hq]."""
        if self.problem.sinks is None:
            return torch.zeros_like(self.moments.peak)
        largest = self.answer.lse + self.moments.p_peak.log()
        return (self.moments.peak - largest).clamp(min=0).nan_to_num_(nan=0.0, posinf=0.0)

    @cached_property
    def row_exponent(self) -> torch.Tensor:
        """Magnitude of the fp32 numbers whose difference is exponentiated, plus a few units for terms; [T, Hq]."""
        lse = self.answer.lse
        return self.moments.peak.abs() + lse.masked_fill(lse == -torch.inf, 0.0).abs() + 4

    @cached_property
    def row_exponent_error(self) -> torch.Tensor:
        """Relative error of exp of a difference, from the fp32 roundings of both sides; [T, Hq].

        Below a sink, the logits are larger than the numbers of `row_exponent`. Their roundings do not cancel in the
        normalization, and the rounding of the common factor of all logits is the same in every row.
        """
        return 2 * FP32 * (self.row_exponent + self.row_below_sink)

    @cached_property
    def row_shared_error(self) -> torch.Tensor:
        """Relative error common to all elements of a row; [T, Hq]."""
        noise = self.noise
        alike = self.alike * (noise.probabilities + noise.row_sum + self.step * self.keys)
        return alike + self.row_exponent_error + self.row_shift_error

    @cached_property
    def row_shift_error(self) -> torch.Tensor:
        """Relative error common to all weights of a row, from the distance of logits and sink; [T, Hq].

        Far below a sink, logits that differ by less than a step of their distance are rounded to the same number. A
        sink at a distance d below them has a share of the weight below exp(-d), and d exp(-d) < 0.4.
        """
        if not self.noise.shifted or self.problem.sinks is None:
            return torch.zeros_like(self.moments.peak)
        return torch.expm1((self.noise.shifted * (self.row_below_sink + 0.4)).clamp_(max=50))

    @property
    def coherent_roundoff(self) -> float:
        """Relative error of a logit that is an fp32 sum of terms of one sign.

        If they are equal, each addition may round to the same side: d times u of the sum so far, on average half the
        sum.
        """
        return self.problem.key.shape[2] / 2 * FP32

    @cached_property
    def row_mean_logit(self) -> torch.Tensor:
        """Magnitude of the weighted mean of the visible logits; [T, Hq]."""
        largest = self.answer.lse + self.moments.p_peak.log()
        return (largest - self.moments.gap).abs_().nan_to_num_(nan=0.0, posinf=0.0)

    @cached_property
    def value_peak(self) -> float:
        """The largest absolute element of V, times bmm2_scale."""
        if not self.problem.value.numel():
            return 0.0
        # In pieces: an fp32 copy of 8-bit values takes four times their memory.
        pieces = self.problem.value.split(_TOKENS_AT_ONCE)
        ends = [(piece if piece.itemsize > 1 else piece.to(torch.float32)).aminmax() for piece in pieces]
        largest: float = torch.stack([end for low, high in ends for end in (-low, high)]).amax().item()
        return largest * abs(self.problem.bmm2_scale)

    @property
    def row_quotient(self) -> torch.Tensor:
        """Absolute error of a row with a huge denominator: before division, weights are at most 1; [T, 1]."""
        return self.noise.quotient * self.value_peak * self.keys

    @cached_property
    def row_lost(self) -> torch.Tensor:
        """Absolute error of weights near zero, which fp32 holds in steps of `_SUBNORMAL`, and of products; [T, Hq]."""
        underflow = max(self.noise.underflow, _SUBNORMAL)
        products = underflow * self.value_peak + SMALLEST_STEP[torch.float32] * abs(self.problem.bmm2_scale)
        return products * self.keys * self._row_largest + self.row_quotient

    @property
    def _row_largest(self) -> torch.Tensor:
        """The largest weight, including the sink's, with which some kernels begin; [T, Hq]."""
        if self.problem.sinks is None:
            return self.moments.p_peak
        return torch.exp(self.moments.peak - self.answer.lse).clamp_(max=1.0)

    @property
    def smallest(self) -> float:
        """Absolute error of outputs near zero, and of the parts that are merged."""
        return self.parts * SMALLEST_STEP[self.out_dtype]

    @cached_property
    def row_flushed(self) -> torch.Tensor:
        """Absolute error of small weights, and of parts that are merged, with one sign in all rows; [T, Hq]."""
        return self.row_lost + (self.parts - 1) * SMALLEST_STEP[self.out_dtype]

    @cached_property
    def floor(self) -> torch.Tensor:
        """Absolute error of weights and outputs near zero; [T, Hq, 1]."""
        return (self.row_lost + self.smallest).unsqueeze(-1)

    @cached_property
    def variance(self) -> torch.Tensor:
        """The mean square error of a correct kernel, [T, Hq, Dv]: an upper estimate, so that z^2 averages below 1."""
        moments, noise = self.moments, self.noise
        variance = self.independent_variance + moments.power * (UNIFORM * (noise.probabilities**2 + noise.operands**2))
        variance.addcmul_(moments.spread, self.row_logit_variance.unsqueeze(-1))
        return variance.addcmul_(self._squared, self.row_shared_variance.unsqueeze(-1))

    @cached_property
    def _squared(self) -> torch.Tensor:
        return self.answer.out.square()

    @cached_property
    def row_shared_variance(self) -> torch.Tensor:
        """Mean square of the relative error common to all elements of a row, [T, Hq]."""
        return self.row_shared_error**2 + self.noise.operands**2 + self.noise.accumulate**2 * self.keys

    @cached_property
    def independent_variance(self) -> torch.Tensor:
        """Mean square of the errors that are independent per element, [T, Hq, Dv]: fp32 sums and output roundings.

        The known rounding of the exact answer is used if it is larger than the average: equal elements, such as counts,
        round alike.
        """
        out, squared, power = self.answer.out, self._squared, self.moments.power
        usual = UNIFORM * self.roundoff**2
        variance = out.to(self.out_dtype).to(torch.float64).sub_(out).square_()
        torch.maximum(variance, squared * usual, out=variance)
        if self.parts > 1:
            variance.add_(power + squared, alpha=usual * (self.parts - 1))
        variance.addcmul_(power, (self.noise.accumulate**2 * self.keys).unsqueeze(-1))
        return variance.add_(self.floor**2)

    @property
    def parts(self) -> int:
        """Number of parts of an output, of the backend or within a kernel, that are rounded to its dtype and merged."""
        return self.roundings + self.noise.parts - 1

    @cached_property
    def output_bound(self) -> torch.Tensor:
        """The largest error of rounding the output and the parts that are merged, [T, Hq, Dv].

        u |o|, and r - 1 roundings of parts of it, with r = `parts`. The parts together, and each merge of some, are
        about as large as S, the larger of |o| and sqrt(sum p^2 v^2). Errors that are uniform in [-a, a] exceed `tail`
        times a sqrt(n / 3) as rarely as normal ones do. n keys make at most n parts, whose sizes add up to sqrt(n) S.
        """
        out = self.size
        if self.parts < 2:
            return out * self.roundoff
        merged = (self.key_root * (self.parts - 1)).clamp_(max=self.tail * sqrt((self.parts - 1) / 3))
        return out.maximum(self.power_root).mul_(merged.unsqueeze(-1)).add_(out).mul_(self.roundoff)

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """Cached results by name, and for single rows also by token and head. One budget may judge many outputs."""
        return {}

    @cached_property
    def roundoff(self) -> float:
        """Unit roundoff of the output's dtype."""
        return ROUNDOFF[self.out_dtype]


def remembered(compute: Callable[[ErrorBudget], torch.Tensor]) -> Callable[[ErrorBudget], torch.Tensor]:
    """Return `compute` with its result cached per budget. Callers must not change the result."""

    @wraps(compute)
    def found(budget: ErrorBudget) -> torch.Tensor:
        if compute not in budget.memo:
            budget.memo[compute] = compute(budget)
        result: torch.Tensor = budget.memo[compute]
        return result

    return found
