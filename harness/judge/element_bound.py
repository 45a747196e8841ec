"""T1: a bound on the error of every element of the output."""

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget


def element_bound(budget: ErrorBudget) -> torch.Tensor:
    """The largest error that a correct kernel shows, [T, Hq, Dv] of fp64.

    t (u_P rms(p v) + rms(delta) rms(p (v - o))) + what a row's elements share + fp32 sums + output roundings +
    floor, with t = `ErrorBudget.deviations`; `error_budget` explains the terms.
    """
    noise, moments = budget.noise, budget.moments
    size = budget.answer.out.abs()
    t = budget.deviations
    sums = noise.accumulate * t * budget.keys.sqrt()
    weights = t * noise.probabilities + sums + t * ((budget.roundings - 1) * budget.roundoff)
    shared = budget.row_shared_error + sums + budget.roundings * budget.roundoff
    logits = t * budget.row_logit_variance.sqrt()
    bound = weights.unsqueeze(-1) * moments.power.sqrt()
    bound += logits.unsqueeze(-1) * moments.spread.sqrt()
    bound += shared.unsqueeze(-1) * size
    return bound.add_(budget.floor)
