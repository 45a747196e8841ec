"""T4: a bound on the error of the log-sum-exp, judged on its own."""

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget

_FP32 = 2.0**-24


def lse_bound(budget: ErrorBudget) -> torch.Tensor:
    """The largest error that a correct kernel shows, [T, Hq] of fp64, in natural units.

    2^-22 (4 + |largest logit| + |lse|) for a few fp32 roundings of each, once more per merge; what the exponential and
    the errors of the weights do to their sum; and the fp32 sum itself.
    """
    noise, moments = budget.noise, budget.moments
    t = budget.deviations
    rounded = 4 * _FP32 * budget.roundings * budget.row_exponent
    weights = t * moments.concentration.sqrt() * (budget.row_logit_variance.sqrt() + noise.row_sum)
    sums = noise.accumulate * (t * budget.keys.sqrt() + budget.alike * budget.keys) + budget.alike * noise.row_sum
    return rounded + weights + sums + noise.exponential
