"""Rows that fail are judged again, by checks too expensive for every row: up to `MOST_ROWS_AGAIN` of an output.

`ErrorBudget` treats the errors of a row's terms as independent unless all its weights are alike. That is too narrow
where keys come in groups (prefixes that sequences share, repeated values, small head dims with values of few bits):
- equal weights are rounded alike for the second product and for the denominator, and so are weights that differ by much
  less than the format tells apart, as those of a saturated soft cap do. A run of them may be rounded differently from
  the others, if the running maximum of the logits differs there;
- copies of a key have the same logit, and the same error in it;
- equal numbers of an element of the values are rounded alike (`NoiseModel.operands`), also where their terms cancel;
- additions to a sum may all be rounded to the same side (`one_sided`);
- the same holds for the terms of a logit: logits that are sums of equal terms err alike.
It also assumes that parts rounded to the output's dtype before a merge are about as large as sqrt(sum p^2 v^2), the
size of a sum whose terms have random signs. Values that are alike over many keys (the codes of ValueFamily.PROBE,
constant values) make much larger parts, larger than the output if they cancel; and elements with the same parts are
rounded alike. The partition that a kernel uses is unknown, but each part is a run of keys, so the largest run bounds
them.

The bounds of sums require a sort of all keys for each element, so only failing elements are examined, until one still
fails.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import TypeVar, cast

import torch

from attnfuzz.harness.judge.error_budget import UNIFORM, ErrorBudget
from attnfuzz.harness.judge.one_sided import independent_sums, one_sided_error
from attnfuzz.reference.row import EQUAL, coherent_logits, key_marks, row_weights, seen_positions, tied_row

T = TypeVar("T")

MOST_ROWS_AGAIN = 64
"""Maximum number of rows of one output that a tier judges again. A slightly wrong factor makes every row suspect, and
examining each would take hours over long requests. If the worst rows all pass, the rest is assumed to pass.
"""


def element_allowance(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return the allowance for a row's own keys on top of T1's bound, [Dv]."""

    def summed() -> torch.Tensor:
        ties, parts = ties_allowance(budget, token, head), parts_allowance(budget, token, head)
        return ties + parts + common_logits_error(budget, token, head) + operands_allowance(budget, token, head)

    return once(budget, "T1", token, head, summed)


def operands_allowance(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return the allowance for equal values on top of T1's bound and T5's, [Dv].

    u_V min(t rms p v of groups, sum of their sizes) - t u_V rms p v of keys.
    """
    power, t = budget.moments.power[token, head], budget.deviations[token].item()
    if not budget.noise.operands:
        return torch.zeros_like(power)
    terms = equal_values(budget, token, head)
    grouped_error = (t * terms.square().sum(dim=0).sqrt()).minimum(terms.abs().sum(dim=0))
    return budget.noise.operands * (grouped_error - t * power.sqrt()).clamp_(min=0)


def equal_values(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return sums of p v over keys with equal values, grouped for each element separately: [groups, Dv]."""
    weights, values = row_of(budget, token, head)
    ordered, order = values.sort(dim=0)
    group = (ordered.diff(dim=0, prepend=ordered[:1]) != 0).cumsum(dim=0)
    return torch.zeros_like(values).scatter_add_(0, group, weights[order] * ordered)


def sums_allowance(budget: ErrorBudget, token: int, head: int, element: int) -> float:
    """Return the allowance for both sums of one element, of p v and of p, on top of T1's bound and T5's."""

    def found() -> float:
        out, power = (each[token, head, element].item() for each in (budget.answer.out, budget.moments.power))
        deviations = budget.deviations[token].item()
        counted = sqrt(budget.keys[token].item()) * (sqrt(power) + abs(out))
        terms = _terms_of(budget, token, head, element)
        independent = budget.noise.accumulate * deviations * max(independent_sums(terms, budget.step) - counted, 0.0)
        total = total_error(budget, token, head) - _counted_total(budget, token, head)
        common = one_sided_error(terms, 0.0, budget.step, deviations) + abs(out) * total
        return max(common, 0.0) + independent

    return once(budget, f"sums of {element}", token, head, found)


def sums_deviations(budget: ErrorBudget, token: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return root mean squares of both sums' errors, [Dv]: those that all elements may share, and independent ones."""
    out, power = budget.answer.out[token, head], budget.moments.power[token, head]
    weights, values = row_of(budget, token, head)
    columns = [weights * value for value in values.T]
    total = _total_error(budget, token, head, 1.0) - _counted_total(budget, token, head)
    common = out.new_tensor([one_sided_error(terms, 0.0, budget.step, 1.0) for terms in columns]) + out.abs() * total
    squares = out.new_tensor([independent_sums(terms, budget.step) ** 2 for terms in columns])
    independent = (squares - budget.keys[token] * (power + out * out)).clamp_(min=0).sqrt_()
    return common.clamp_(min=0), budget.noise.accumulate * independent


def total_error(budget: ErrorBudget, token: int, head: int) -> float:
    """Return a bound on the relative error that additions of the softmax's denominator have in common."""
    deviations = budget.deviations[token].item()
    return once(budget, "total", token, head, lambda: _total_error(budget, token, head, deviations))


def _total_error(budget: ErrorBudget, token: int, head: int, deviations: float) -> float:
    weights = row_of(budget, token, head)[0]
    # A kernel may begin with the sink.
    sink = max(1.0 - float(weights.sum()), 0.0)
    return one_sided_error(weights, sink, budget.step, deviations)


def _counted_total(budget: ErrorBudget, token: int, head: int) -> float:
    """Return the share of both sums that bounds count where all weights are alike, relative to the output or total."""
    return budget.alike[token, head].item() * budget.step * budget.keys[token].item()


def with_sums(ratio: torch.Tensor, bound: torch.Tensor, sums: Callable[[int], float]) -> float:
    """Return the largest `ratio` [Dv] of error to `bound` [Dv], with `bound` widened by `sums` for an element.

    Ratios are updated in place, the worst element first, up to the first one that still fails. The others count as no
    worse.
    """
    if not ratio.numel():
        return 0.0
    for element in ratio.argsort(descending=True).tolist():
        old, allowed = ratio[element].item(), bound[element].item()
        if not 1 < old < inf:
            break
        new = old * allowed / (allowed + sums(element))
        ratio[element] = new
        if new > 1:
            ratio.clamp_(max=new)
            break
    return ratio.max().item()


def judged_again(ratio: torch.Tensor, again: Callable[[int, int], float]) -> tuple[int, int] | None:
    """Return the worst row that still fails when judged again, or None.

    `ratio` [T, Hq] is each row's error over bound, and `again` recomputes that of a token and head. The new ratio
    replaces the old one; rows not judged again are capped at 1 and pass.
    """
    if not ratio.numel() or ratio.max().item() <= 1:
        return None
    failing = (ratio > 1).nonzero()
    ordered = failing[ratio[ratio > 1].argsort(descending=True)].tolist()
    for token, head in ordered[:MOST_ROWS_AGAIN]:
        new = again(token, head)
        ratio[token, head] = new
        if new > 1:
            return token, head
    ratio.clamp_(max=1.0)
    return None


def once(budget: ErrorBudget, name: str, token: int, head: int, make: Callable[[], T]) -> T:
    """Return `make()` for a row, cached in the budget, which keeps many: the result should be small."""
    if (name, token, head) not in budget.memo:
        budget.memo[name, token, head] = make()
    found: T = budget.memo[name, token, head]
    return found


def _lately(budget: ErrorBudget, name: str, token: int, head: int, make: Callable[[], T]) -> T:
    """Return `make()` for a row, cached until another row is requested: the result is as large as the row's keys."""
    row, found = budget.memo.get(name, (None, None))
    if row != (token, head):
        found = make()
        budget.memo[name] = (token, head), found
    return cast("T", found)


_ALIKE_IN_A_SUM = 2.0**-20
"""Relative difference of terms below which a sum in fp32 that is 16 times as large drops the same part of each."""

_MOST_APART = 32
"""Width of a group of neighbours, in units of the nearness of two of them: half the roundoff of the weights."""

_TINY = 1e-300


@dataclass(frozen=True)
class Groups:
    """Sums over groups of a row's keys, fp64: of p, `weights` [groups], and of p v, `weighted` [groups, Dv]."""

    weights: torch.Tensor
    weighted: torch.Tensor

    @classmethod
    def by(cls, group: torch.Tensor, weights: torch.Tensor, values: torch.Tensor) -> "Groups":
        """Return groups from the number of each key's group, int64 [k], its weight [k] and value [k, Dv]."""
        count = int(group.max()) + 1 if len(group) else 0
        whole, weighted = (each.new_zeros((count, *each.shape[1:])) for each in (weights, values))
        return cls(whole.index_add_(0, group, weights), weighted.index_add_(0, group, weights.unsqueeze(-1) * values))

    @property
    def concentration(self) -> float:
        """Sum over groups of (sum p)^2: `Moments.concentration` of terms whose errors a group has in common."""
        return self.weights.square().sum().item()

    @property
    def power(self) -> torch.Tensor:
        """Sum over groups of (sum p v)^2, [Dv], likewise."""
        return self.weighted.square().sum(dim=0)

    def spread(self, out: torch.Tensor) -> torch.Tensor:
        """Return the sum over groups of (sum p (v - out))^2 for `out` [Dv], likewise."""
        return self.apart(out).square().sum(dim=0)

    def apart(self, out: torch.Tensor) -> torch.Tensor:
        """Return sum p (v - out) of each group, [groups, Dv]."""
        return self.weighted - torch.outer(self.weights, out)


@dataclass(frozen=True)
class Ties:
    """A row's keys in groups: `alike` have equal weights, up to `nearness`, and `copies` are one key.

    `alike.weighted` may be the sums over the largest run of each group's keys, not over all of them.
    """

    alike: Groups
    copies: Groups

    @classmethod
    def of(
        cls,
        weights: torch.Tensor,
        values: torch.Tensor,
        marks: torch.Tensor,
        near: float = EQUAL,
        *,
        by_runs: bool = False,
    ) -> "Ties":
        """Return the groups of one row, from the k keys that it sees: weights, values [k, Dv] and `key_marks`.

        Weights are equal if they differ by a share of at most `near`. `by_runs` is for `rounded_by_runs`.
        """
        equal = _short(weights, grouped(weights, near * weights), _MOST_APART * near)
        copies = grouped(marks, torch.full_like(marks, EQUAL))
        alike = Groups.by(equal, weights, values)
        if by_runs:
            alike = replace(alike, weighted=_largest_runs(equal, weights, values))
        return cls(alike, Groups.by(copies, weights, values))


def ties_allowance(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return the allowance for a row's ties on top of T1's bound, [Dv].

    t u_P (rms p v of groups - of keys) + tail rms(delta) (rms p (v - o) of copies - of keys).
    """
    ties, moments = _ties_of(budget, token, head), budget.moments
    power, spread = moments.power[token, head], moments.spread[token, head]
    if ties is None:
        return torch.zeros_like(power)
    out = budget.answer.out[token, head]
    weights = (ties.alike.power.sqrt() - power.sqrt()).clamp(min=0)
    logits = (ties.copies.spread(out).sqrt() - spread.sqrt()).clamp(min=0)
    deviations = budget.deviations[token].item()
    allowed = deviations * budget.noise.probabilities * weights
    return allowed + budget.tail * budget.row_logit_variance[token, head].sqrt() * logits


def lse_ties_allowance(budget: ErrorBudget, token: int, head: int) -> float:
    """Return the allowance for a row's ties on top of T4's bound, in natural units."""
    return once(budget, "T4", token, head, lambda: _lse_ties_allowance(budget, token, head))


def _lse_ties_allowance(budget: ErrorBudget, token: int, head: int) -> float:
    ties, noise = _ties_of(budget, token, head), budget.noise
    summed = float(row_of(budget, token, head)[0] @ _coherent_error(budget, token, head))
    summed += max(total_error(budget, token, head) - _counted_total(budget, token, head), 0.0)
    if ties is None:
        return summed
    usual = sqrt(budget.moments.concentration[token, head].item())
    weights, logits = (max(sqrt(groups.concentration) - usual, 0.0) for groups in (ties.alike, ties.copies))
    deviations = budget.deviations[token].item()
    return (
        summed
        + deviations * noise.row_sum * weights
        + budget.tail * sqrt(budget.row_logit_variance[token, head].item()) * logits
    )


def _terms_of(budget: ErrorBudget, token: int, head: int, element: int) -> torch.Tensor:
    """Return the terms p v of one element, fp64 [k]."""
    weights, values = row_of(budget, token, head)
    return weights * values[:, element]


def _ties_of(budget: ErrorBudget, token: int, head: int) -> Ties | None:
    """Return the groups of one row, or None if all of its weights differ."""

    def found() -> Ties | None:
        near = nearness(budget)
        tied = tied_row(budget.problem, token, head, near)
        if tied is None:
            return None
        by_runs = rounded_by_runs(budget, token, head)
        return Ties.of(*tied, key_marks(budget.problem, token, head), near, by_runs=by_runs)

    return _lately(budget, "ties", token, head, found)


def common_logits_error(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return the error of one row that its logits' common errors cause, [Dv]: `NoiseModel.logit_scale`, and fp32 sums.

    The first is the model's times |sum p l (v - o)|, the second the sum of p |v - o| times each logit's error.
    """
    weights, values = row_of(budget, token, head)
    out, coherent = budget.answer.out[token, head], _coherent_error(budget, token, head)
    # Usually few logits are such sums; the others are skipped.
    off = coherent.nonzero().flatten()
    error = (weights[off] * coherent[off]) @ (values[off] - out).abs()
    if budget.noise.logit_scale:
        # p l is 0 where p is 0.
        logits = weights.clamp(min=_TINY).log() + budget.answer.lse[token, head]
        error += budget.noise.logit_scale * ((weights * logits) @ (values - out)).abs()
    return error


def _coherent_error(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return the error of each logit that is a sum of terms of one sign, fp64 [k]."""
    return coherent_logits(budget.problem, token, head) * budget.coherent_roundoff


def row_of(budget: ErrorBudget, token: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights and values of one row, as `row_weights` does."""
    return _lately(budget, "row", token, head, lambda: row_weights(budget.problem, token, head))


def nearness(budget: ErrorBudget) -> float:
    """Return the relative difference up to which weights are rounded alike."""
    return max(budget.noise.probabilities / 64, _ALIKE_IN_A_SUM)


def largest_run(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the largest |sum p v| over runs of keys, [Dv], from the weights [k] and values [k, Dv] of a row."""
    sums = torch.zeros(len(weights) + 1, values.shape[1], dtype=torch.float64, device=values.device)
    torch.cumsum(weights.unsqueeze(-1) * values, dim=0, out=sums[1:])
    return sums.amax(dim=0) - sums.amin(dim=0)


def _largest_runs(group: torch.Tensor, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return sum p v over the largest run of each group's keys, [groups, Dv], by each key's group, int64 [k].

    With the sign of its first keys: elements whose terms have the same signs err alike.
    """
    order = group.argsort(stable=True)
    of, sums = group[order], (weights[order].unsqueeze(-1) * values[order]).cumsum(dim=0)
    first = of.diff(prepend=of[:1] - 1).nonzero().flatten()
    before = torch.cat((sums.new_zeros((1, sums.shape[1])), sums))[first]
    own, at = sums - before[of], of.unsqueeze(-1).expand_as(sums)
    highest = torch.zeros_like(before).scatter_reduce_(0, at, own, "amax")
    lowest = torch.zeros_like(before).scatter_reduce_(0, at, own, "amin")
    return (highest - lowest).where(highest >= -lowest, lowest - highest)


def parts_allowance(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return the allowance for a row's parts on top of T1's bound and T5's, [Dv], minus the share counted there.

    `ErrorBudget.output_bound` for parts of the size R, the largest run, and merges of 2 R. A value is rounded in a part
    and, with r = `ErrorBudget.parts`, in r - 2 merges of some of them, which span at most two runs: the request's new
    tokens, and a run of its prefix.
    """
    counted = budget.output_bound[token, head]
    if budget.parts < 2:
        return torch.zeros_like(counted)
    # n keys make at most n parts.
    most = budget.keys[token].item() + 2 * (budget.parts - 2)
    rounded = budget.roundoff * min(budget.tail * sqrt((5 * budget.parts - 8) / 3), most)
    return (rounded * largest_run_of(budget, token, head) - counted).clamp(min=0)


def rounded_by_runs(budget: ErrorBudget, token: int, head: int) -> bool:
    """Return whether runs of equal weights may be rounded differently, by the running maximum of the logits.

    A kernel that counts the sink as a logit may do so in the first part of the keys alone (vLLM 0.33.0,
    v1/attention/ops/triton_attention_helpers.py, `init_softmax_M`).
    """
    sinks = budget.problem.sinks is not None and budget.noise.peak > 0
    return sinks or not budget.exact_weights[token, head].item()


def runs_allowance(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return the allowance for `rounded_by_runs` on top of T5's bound, [Dv]: the rounding of the largest run."""
    if not rounded_by_runs(budget, token, head):
        return torch.zeros_like(budget.moments.power[token, head])
    return budget.noise.probabilities * largest_run_of(budget, token, head)


def parts_error(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return the root mean square of two roundings per merge, [Dv], which all elements may share."""
    if budget.parts < 2:
        return torch.zeros_like(budget.moments.power[token, head])
    return sqrt(2 * UNIFORM * (budget.parts - 1)) * budget.roundoff * largest_run_of(budget, token, head)


def largest_run_of(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """Return `largest_run` of one row, over runs of consecutive keys, or of consecutive keys of one rank."""
    return once(budget, "largest run", token, head, lambda: _largest_run_of(budget, token, head))


def _largest_run_of(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    weights, values = row_of(budget, token, head)
    largest = largest_run(weights, values)
    if budget.shares is not None:
        rank = budget.shares.rank_of(seen_positions(budget.problem, token).to(values.device))
        for each in range(budget.shares.ranks):
            largest = largest.maximum(largest_run(weights[rank == each], values[rank == each]))
    return largest


def _short(weights: torch.Tensor, group: torch.Tensor, most: float) -> torch.Tensor:
    """Split groups of sorted neighbours [k] into groups whose weights differ by a share of at most `most`."""
    if not len(group):
        return group
    lowest = torch.full((int(group.max()) + 1,), torch.inf, dtype=weights.dtype, device=weights.device)
    lowest.scatter_reduce_(0, group, weights, "amin")
    start = lowest[group]
    piece = ((weights / start.clamp(min=_TINY)).log() / most).to(torch.int64).clamp_(min=0)
    # One number for both: sorting pairs takes ten times as long.
    pieces: torch.Tensor = torch.unique(group * (piece.max() + 1) + piece, return_inverse=True)[1]
    return pieces


def grouped(numbers: torch.Tensor, tolerance: torch.Tensor) -> torch.Tensor:
    """Return the group of each of `numbers` [n], int64 [n], counted from 0 in ascending order.

    A number joins the group of the next lower one if it exceeds it by at most its own `tolerance` [n].
    """
    ordered, order = numbers.sort()
    starts = ordered.diff(prepend=ordered[:1]) > tolerance[order]
    return torch.empty_like(order).scatter_(0, order, starts.cumsum(0))
