"""T4: a bound on the error of the log-sum-exp, which is judged on its own."""

from math import log

import torch

from attnfuzz.harness.judge.error_budget import FP32, ErrorBudget, remembered
from attnfuzz.harness.judge.evidence import Evidence, TierResult
from attnfuzz.harness.judge.judged_again import judged_again, lse_ties_allowance
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.contract import LseBase


def judge_lse(evidence: Evidence) -> TierResult | None:
    """Return T4's verdict, or None if there is no LSE."""
    if evidence.lse is None:
        return None
    budget = evidence.budget
    error, bound = evidence.own_lse_error.abs(), lse_bound(budget)
    ratio = error / bound

    def again(token: int, head: int) -> float:
        return error[token, head].item() / (bound[token, head].item() + lse_ties_allowance(budget, token, head))

    wrong = judged_again(ratio, again)
    if wrong is None:
        return TierResult(ratio.max().item())
    base = evidence.contract.lse
    other, other_unit = ("e", 1.0) if base is LseBase.TWO else ("2", log(2.0))
    message = wrong_lse(evidence, ratio, wrong)
    if (evidence.lse_error(other_unit).abs() / bound).max().item() <= 1:
        message += f"; all are right in base {other}"
    return evidence.failed(Tier.T4, "lse", ratio[wrong].item(), message, wrong)


def wrong_lse(evidence: Evidence, ratio: torch.Tensor, worst: tuple[int, int]) -> str:
    """Describe the `worst` LSE, from the error over bound of all of them, `ratio` [T, Hq]."""
    assert evidence.lse is not None
    expected = evidence.budget.answer.lse[worst].item() / evidence.lse_unit
    return (
        f"{evidence.name(worst)}: lse {evidence.lse[worst].item():.8g} instead of {expected:.8g} "
        f"(base {evidence.contract.lse}), {ratio[worst].item():.3g} times the allowed error; "
        f"{evidence.share(ratio > 1)}"
    )


@remembered
def lse_bound(budget: ErrorBudget) -> torch.Tensor:
    """Return the largest error that a correct kernel may have, fp64 [T, Hq], in natural units.

    Shared errors, tail times the effect of weight errors on their sum, and t times the rounding of that sum, with t =
    `ErrorBudget.deviations`.
    """
    summing = budget.deviations * summing_lse_error(budget)
    return shared_lse_error(budget) + budget.tail * weighing_lse_error(budget) + summing


@remembered
def shared_lse_error(budget: ErrorBudget) -> torch.Tensor:
    """Return the error that all LSEs may share, [T, Hq].

    2^-22 (4 + |largest logit| + |lse|) for a few fp32 roundings of each, once more per merge; the exponential; the
    scale of the logits, and their distance from a sink; and the effect of equal weights on their sum.
    """
    noise = budget.noise
    return rounded_lse_error(budget) + budget.alike * (budget.step * budget.keys + noise.row_sum)


@remembered
def rounded_lse_error(budget: ErrorBudget) -> torch.Tensor:
    """Return the part of `shared_lse_error` that does not depend on the weights, [T, Hq]."""
    noise = budget.noise
    rounded = 4 * FP32 * budget.roundings * budget.row_exponent + noise.exponential + budget.row_shift_error
    return rounded + noise.logit_scale * budget.row_mean_logit if noise.logit_scale else rounded


def independent_lse_error(budget: ErrorBudget) -> torch.Tensor:
    """Return the root mean square of the independent error, [T, Hq]: of the fp32 sum, and of the weights in it."""
    return weighing_lse_error(budget) + summing_lse_error(budget)


@remembered
def weighing_lse_error(budget: ErrorBudget) -> torch.Tensor:
    """Return the root mean square of the effect of weight errors on their sum, [T, Hq]."""
    return budget.moments.concentration.sqrt() * (budget.row_logit_deviation + budget.noise.row_sum)


def summing_lse_error(budget: ErrorBudget) -> torch.Tensor:
    """Return the root mean square of the roundings of a sum in fp32, [T, 1]."""
    return budget.noise.accumulate * budget.key_root
