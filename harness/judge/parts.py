"""Parts of an output that are rounded to its dtype before they are merged.

`ErrorBudget` takes them to be about as large as sqrt(sum p^2 v^2), the size of a sum whose terms have random signs.
Values that are alike over many keys (the codes of ValueFamily.PROBE, constant values) make parts that are far larger
than that, and than the output if they cancel; and elements with the same parts are rounded alike. How a kernel cuts its
keys into parts is not known, but each is a run of keys. A row that fails is judged again by its largest one.
"""

from math import sqrt

import torch

from attnfuzz.harness.judge.error_budget import UNIFORM, ErrorBudget
from attnfuzz.reference.row import row_weights


def largest_run(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The largest |sum p v| over runs of keys, [Dv], from the weights [k] and values [k, Dv] of a row."""
    sums = torch.zeros(len(weights) + 1, values.shape[1], dtype=torch.float64, device=values.device)
    torch.cumsum(weights.unsqueeze(-1) * values, dim=0, out=sums[1:])
    return sums.amax(dim=0) - sums.amin(dim=0)


def parts_allowance(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """What the parts of a row add to T1's bound and T5's, [Dv]: (3 r - 4) u R, if that is more than they have of it.

    R is the largest run. Of r = `roundings` parts each is rounded, and so are r - 2 merges of some of them, which reach
    over two runs at most: the request's new tokens, and a run of its prefix.
    """
    power, roundings = budget.moments.power[token, head], budget.roundings
    if roundings < 2:
        return torch.zeros_like(power)
    counted = budget.deviations[token] * ((roundings - 1) * budget.roundoff) * power.sqrt()
    return ((3 * roundings - 4) * budget.roundoff * _largest_run(budget, token, head) - counted).clamp(min=0)


def parts_error(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Root mean square of what two roundings for each merge come to, [Dv], which all elements may have in common."""
    if budget.roundings < 2:
        return torch.zeros_like(budget.moments.power[token, head])
    return sqrt(2 * UNIFORM * (budget.roundings - 1)) * budget.roundoff * _largest_run(budget, token, head)


def _largest_run(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    key = "largest run", token, head
    if key not in budget.memo:
        budget.memo[key] = largest_run(*row_weights(budget.problem, token, head))
    found: torch.Tensor = budget.memo[key]
    return found
