"""Weights that are equal: they round alike, and so do the sums that they are added up in.

`ErrorBudget` takes the errors of a row's terms for independent unless all of its weights are alike. Where keys come in
groups of equal ones (prefixes that slots share, values that repeat, few dims of few bits), that is too narrow. Finding
the groups takes a sort of every row's logits, so only a row that fails is asked for its groups, and judged again by
what they may add: at most `MOST_ROWS_AGAIN` rows of an output, the worst first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.reference.row import EQUAL, tied_row

MOST_ROWS_AGAIN = 64
"""Rows of one output that a tier judges again. A factor that is wrong by little makes every row suspect: over long
requests, looking at each would take hours, and where the worst all pass, the rest are like them."""


@dataclass(frozen=True)
class Ties:
    """A row's keys in groups of equal weight, fp64: the sums of p [groups] and of p v [groups, Dv] of each group.

    `tied` keys are in groups of two and more.
    """

    weights: torch.Tensor
    weighted: torch.Tensor
    tied: int

    @classmethod
    def of(cls, weights: torch.Tensor, values: torch.Tensor) -> "Ties":
        """The groups of one row, from the weights [k] and values [k, Dv] of the k keys that it sees."""
        if not weights.numel():
            return cls(weights, values, 0)
        ordered, order = weights.sort()
        group = (ordered.diff(prepend=ordered[:1]) > EQUAL * ordered).cumsum(0)
        count = int(group[-1]) + 1
        sums = torch.zeros((count, 1 + values.shape[1]), dtype=torch.float64, device=values.device)
        terms = torch.cat((ordered.unsqueeze(-1), ordered.unsqueeze(-1) * values[order]), dim=-1)
        sums.index_add_(0, group, terms)
        sizes = torch.bincount(group)
        return cls(sums[:, 0], sums[:, 1:], int(sizes[sizes > 1].sum()))

    @property
    def power(self) -> torch.Tensor:
        """Sum over groups of (sum p v)^2, [Dv]: `Moments.power` of terms whose errors a group has in common."""
        return self.weighted.square().sum(dim=0)

    @property
    def concentration(self) -> float:
        """Sum over groups of (sum p)^2, likewise."""
        return self.weights.square().sum().item()

    def summed(self, accumulate: float) -> torch.Tensor:
        """What rounding partial sums to `accumulate` may come to where equal terms round to the same side, [Dv].

        n u times the sizes of the groups' sums, n being the keys that are tied (Higham's bound for n terms).
        """
        return accumulate * self.tied * self.weighted.abs().sum(dim=0)


def element_allowance(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """What the ties of a row add to T1's bound, [Dv]: t u_P (rms of groups - rms of keys) and what their sums share."""
    ties, power = _ties_of(budget, token, head), budget.moments.power[token, head]
    if ties is None:
        return torch.zeros_like(power)
    beyond = (ties.power.sqrt() - power.sqrt()).clamp(min=0)
    return budget.deviations[token] * budget.noise.probabilities * beyond + ties.summed(budget.noise.accumulate)


def lse_allowance(budget: ErrorBudget, token: int, head: int) -> float:
    """What the ties of a row add to T4's bound, in natural units."""
    ties, noise = _ties_of(budget, token, head), budget.noise
    if ties is None:
        return 0.0
    beyond = max(sqrt(ties.concentration) - sqrt(budget.moments.concentration[token, head].item()), 0.0)
    return budget.deviations[token].item() * noise.row_sum * beyond + noise.accumulate * ties.tied


def _ties_of(budget: ErrorBudget, token: int, head: int) -> Ties | None:
    """The groups of one row; None if all of its weights differ."""
    key = "ties", token, head
    if key not in budget.memo:
        tied = tied_row(budget.problem, token, head)
        budget.memo[key] = None if tied is None else Ties.of(*tied)
    found: Ties | None = budget.memo[key]
    return found


def judged_again(ratio: torch.Tensor, again: Callable[[int, int], float]) -> tuple[int, int] | None:
    """The row that fails worst even with its ties; None if there is none.

    `ratio` [T, Hq] is each row's error over bound, and `again` that of a token and head with its ties. Rows that no
    longer fail have their new ratio put in its place, and those that are not judged again count as passing by a hair.
    """
    failing = (ratio > 1).nonzero()
    ordered = failing[ratio[ratio > 1].argsort(descending=True)].tolist()
    for token, head in ordered[:MOST_ROWS_AGAIN]:
        new = again(token, head)
        ratio[token, head] = new
        if new > 1:
            return token, head
    ratio.clamp_(max=1.0)
    return None
