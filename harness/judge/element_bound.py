"""T1: a bound on the error of every element of the output."""

from functools import partial

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget, remembered
from attnfuzz.harness.judge.even_parts import element_sums_allowance
from attnfuzz.harness.judge.evidence import Evidence, TierResult
from attnfuzz.harness.judge.judged_again import element_allowance, judged_again, with_sums
from attnfuzz.harness.verdict.tiers import Tier


def judge_elements(evidence: Evidence) -> TierResult:
    """Return T1's verdict on the output."""
    budget, error = evidence.budget, evidence.error_size
    bound = element_bound(budget)
    ratio = error / bound
    by_row = ratio.amax(dim=-1)

    def again(token: int, head: int) -> float:
        allowed = bound[token, head] + element_allowance(budget, token, head)
        ratio[token, head] = error[token, head] / allowed
        return with_sums(ratio[token, head], allowed, partial(element_sums_allowance, budget, token, head))

    wrong = judged_again(by_row, again)
    if wrong is None:
        return TierResult(by_row.max().item())
    token, head = wrong
    margin, element = by_row[token, head].item(), int(ratio[token, head].argmax())
    seen, expected = evidence.out[token, head, element].item(), budget.answer.out[token, head, element].item()
    message = (
        f"{evidence.name(wrong)}, element {element}: {seen:.6g} instead of {expected:.6g}, "
        f"{margin:.3g} times the allowed error; {evidence.share(by_row > 1)}"
    )
    return evidence.failed(Tier.T1, "out", margin, message, wrong)


@remembered
def element_bound(budget: ErrorBudget) -> torch.Tensor:
    """Return the largest error that a correct kernel may have, [T, Hq, Dv] in fp64.

    t (u_P + u_V) rms(p v) + tail rms(delta) rms(p (v - o)) + the error that a row's elements share + fp32 sums + output
    roundings + floor, with t = `ErrorBudget.deviations`; `error_budget` explains the terms.
    """
    noise, t = budget.noise, budget.deviations
    sums = noise.accumulate * t * budget.key_root
    weights = t * (noise.probabilities + noise.operands) + sums
    shared = budget.row_shared_error + noise.operands + sums
    logits = budget.tail * budget.row_logit_deviation
    bound = budget.output_bound + budget.floor
    bound.addcmul_(budget.power_root, weights.unsqueeze(-1))
    bound.addcmul_(budget.spread_root, logits.unsqueeze(-1))
    return bound.addcmul_(budget.size, shared.unsqueeze(-1))
