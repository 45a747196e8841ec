"""T5: rows whose softmax weights are exact, in which one key of 65,536 exceeds any rounding.

If the visible logits that matter are equal, each weight is exp(0) = 1 before normalization, in every format, and a sum
of n ones is exact in fp32 up to 2^24. A kernel that normalizes first, or overestimates the largest logit, rounds all
weights alike. Either way the weights have no independent errors, which are most of the error that T1 and T4 allow.

The answer's moments identify these rows: the gap between the largest logit and the others, averaged by weight, is
almost 0. That holds for q = 0, for equal keys, and if one key has all the weight; `attnfuzz.reference.probe` makes such
rows on purpose.
"""

from functools import partial

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.even_parts import element_sums_allowance
from attnfuzz.harness.judge.evidence import Evidence, TierResult
from attnfuzz.harness.judge.judged_again import (
    common_logits_error,
    judged_again,
    operands_allowance,
    parts_allowance,
    runs_allowance,
    with_sums,
)
from attnfuzz.harness.judge.lse_bound import rounded_lse_error, wrong_lse
from attnfuzz.harness.verdict.tiers import Tier


def judge_exact_rows(evidence: Evidence) -> TierResult | None:
    """Return T5's verdict on the output, or None if no row has exact weights."""
    budget = evidence.budget
    exact = budget.exact_weights & evidence.sees.unsqueeze(-1)
    if not exact.any():
        return None
    rows = exact.flatten().nonzero().squeeze(-1)
    error, bound = _rows(evidence.error_size, rows), exact_bound(budget, rows)
    ratio = error / bound
    by_row = torch.zeros_like(budget.moments.gap).masked_scatter_(exact, ratio.amax(dim=-1))

    def row_of(token: int, head: int) -> int:
        return int(torch.searchsorted(rows, token * exact.shape[1] + head))

    def again(token: int, head: int) -> float:
        row = row_of(token, head)
        allowed = bound[row] + exact_allowance(budget, token, head)
        ratio[row] = error[row] / allowed
        return with_sums(ratio[row], allowed, partial(element_sums_allowance, budget, token, head))

    wrong = judged_again(by_row, again)
    if wrong is None:
        return TierResult(by_row.max().item())
    token, head = wrong
    margin, element = by_row[token, head].item(), int(ratio[row_of(token, head)].argmax())
    keys = int(budget.answer.visible[token])
    equal = 1 / (budget.moments.p_peak[token, head].item() * keys)
    weights = "equal weights" if equal < 2 else "one key's weight, or few"
    seen, expected = evidence.out[token, head, element].item(), budget.answer.out[token, head, element].item()
    message = (
        f"{evidence.name(wrong)}, element {element}: {seen:.8g} instead of {expected:.8g} from {weights} "
        f"among {keys} keys, {margin:.3g} times the allowed error; {evidence.share(ratio.amax(dim=-1) > 1)}"
    )
    return evidence.failed(Tier.T5, "out", margin, message, wrong)


def judge_exact_lse(evidence: Evidence) -> TierResult | None:
    """Return T5's verdict on the LSE, or None if there is none or no row whose logits are all 0."""
    budget = evidence.budget
    if evidence.lse is None:
        return None
    zero = zero_logits(budget) & evidence.sees.unsqueeze(-1)
    if not zero.any():
        return None
    error = evidence.own_lse_error.abs()
    ratio = torch.where(zero, error / exact_lse_bound(budget), 0.0)
    margin = ratio.max().item()
    if margin <= 1:
        return TierResult(margin)
    worst = evidence.row_of(int(ratio.argmax()))
    message = f"{wrong_lse(evidence, ratio, worst)}; all of its logits are 0"
    return evidence.failed(Tier.T5, "lse", margin, message, worst)


def zero_logits(budget: ErrorBudget) -> torch.Tensor:
    """Return whether all logits of each row are 0: bool [T, Hq]."""
    return (budget.moments.magnitude == 0) & (budget.moments.peak == 0)


def exact_allowance(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return the allowance for a row's own keys on top of `exact_bound`, [Dv]."""
    allowance = parts_allowance(budget, token, head) + runs_allowance(budget, token, head)
    allowance += operands_allowance(budget, token, head)
    if budget.problem.sinks is not None:
        allowance = allowance + common_logits_error(budget, token, head)
    return allowance


def exact_bound(budget: ErrorBudget, rows: torch.Tensor) -> torch.Tensor:
    """Return the largest error of a correct kernel in `rows` with exact weights: fp64 [rows, Dv].

    `rows` are indices into flat [T, Hq]. The bound is (u_P + u_sum + u n + 2 u e) |o|, the rounding that all n equal
    weights share, their sum if they are not ones, and the fp32 roundings of exponents of size e; t u sqrt(n) rms(p v),
    the fp32 sums; tail rms(delta) rms(p (v - o)), where delta is the error of the logits alone: exp(0) is exact; 2 gap
    max|v| for weights far below the others; and, as in T1, output roundings, those before a merge, huge denominators,
    and a floor. With a sink, all weights share delta too.
    """
    noise, moments = budget.noise, budget.moments
    t = budget.deviations
    alike = moments.p_peak.reciprocal().minimum(budget.keys)
    exponent = budget.row_exponent_error
    delta = exponent**2 + (noise.logits * moments.magnitude) ** 2
    if budget.problem.soft_cap:
        delta += (noise.tanh * moments.magnitude.clamp(max=budget.problem.soft_cap)) ** 2
    shared = noise.probabilities + noise.operands + noise.row_sum + budget.step * alike + exponent
    if budget.problem.sinks is not None:
        shared = shared + budget.tail * budget.row_logit_deviation
    sums = noise.accumulate * t * budget.key_root
    weights = sums + t * noise.operands
    # With a sink, they are not ones, and may be lost.
    lost = budget.row_quotient if budget.problem.sinks is None else budget.row_lost
    floor = 2 * budget.value_peak * moments.gap + lost + budget.smallest

    def of(row: torch.Tensor) -> torch.Tensor:
        return _rows(row.expand_as(moments.gap), rows).unsqueeze(-1)

    bound = _rows(budget.output_bound, rows) + of(floor)
    bound.addcmul_(_rows(budget.power_root, rows), of(weights))
    bound.addcmul_(_rows(budget.spread_root, rows), of(budget.tail * delta.sqrt()))
    return bound.addcmul_(_rows(budget.size, rows), of(shared + sums))


def _rows(tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return rows of [T, Hq, ...] by flat index: [rows, ...]."""
    flat = tensor.flatten(0, 1)
    return flat if len(rows) == len(flat) else flat.index_select(0, rows)


def exact_lse_bound(budget: ErrorBudget) -> torch.Tensor:
    """Return the largest LSE error of a correct kernel in rows whose logits are all 0: fp64 [T, Hq], natural units.

    This is T4's bound for such logits, minus the weights' effect on their sum, which is exact: the number of keys, plus
    the sink's share, whose weight may be rounded. The sum is inexact only in a kernel whose largest weight is not
    exp(0) and that adds a thousand keys or more one by one in one fp32 sum; real kernels keep one sum per thread.
    """
    bound = rounded_lse_error(budget)
    if budget.problem.sinks is None:
        return bound
    sink_share = torch.exp(budget.problem.sinks.to(torch.float64) - budget.answer.lse)
    return bound + budget.noise.row_sum * sink_share
