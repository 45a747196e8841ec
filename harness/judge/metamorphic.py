"""T6: a related run must give the same output as the first, bit for bit if the contract says so.

Otherwise both are within a correct kernel's bound around the same truth (T1's for elements, T4's for the LSE), so they
differ by at most the sum of the two bounds, which are equal except for the number of output roundings.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, isfinite, log

import torch

from attnfuzz.harness.judge import exact
from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.even_parts import element_sums_allowance
from attnfuzz.harness.judge.evidence import Evidence, RealRows, Report
from attnfuzz.harness.judge.judged_again import (
    element_allowance,
    judged_again,
    lse_ties_allowance,
    with_sums,
)
from attnfuzz.harness.judge.lse_bound import lse_bound
from attnfuzz.harness.verdict.failures import Kind, Observation, RowAddress
from attnfuzz.harness.verdict.tiers import ALL_TIERS, Tier
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.reference.contract import Contract, Holds, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.relation import Relation

_KINDS = {Relation.SAME_CALL: Kind.NONDETERMINISTIC, Relation.REPLAY_AS_EAGER: Kind.REPLAY_DIVERGED}


@dataclass(frozen=True)
class StepComparison:
    """The result of comparing one step. `margin` is the largest difference over bound, None if bits were compared."""

    observations: tuple[Observation, ...]
    margin: float | None = None


def compare(
    first: Evidence,
    output: Output,
    *,
    relation: Relation,
    positions: Sequence[int],
    geometry: Geometry,
    contract: Contract,
    report: Report,
    strict: bool = False,
    tiers: Collection[Tier] = ALL_TIERS,
) -> StepComparison:
    """Compare the `output` of a related step with the first run, which has passed.

    The first run's request p is at `positions[p]` of the related step. Padded rows of the related step are checked by
    T0. With `strict`, bits promised only by the strict contract are compared too: a difference is a gap.
    """
    rows = RealRows(output.attended, output.out.shape[0], output.out.device)
    wrong = exact.misshapen(output, rows, geometry, report)
    if wrong is not None:
        return StepComparison((wrong,))
    observations: list[Observation] = []
    if Tier.T0 in tiers:
        observations += exact.padded_rows(rows.padded(output.out), contract, report)
    kind = _KINDS.get(relation, Kind.METAMORPHIC_MISMATCH)
    margins = []
    for pair in _pairs(first, output, rows.real, _tokens_of(rows.q_lens, positions), contract):
        mismatch = partial(report, kind=kind, place=pair.place, tier=Tier.T6)
        if contract.keeps_bits(relation):
            observations += pair.differing_bits(mismatch)
            continue
        ratio = pair.ratio()
        pair.judge_again(ratio)
        largest = ratio.max().item()
        if largest < inf:
            margins.append(largest)
        if largest > 1:
            observations.append(pair.too_far_apart(ratio, largest, mismatch))
        elif strict and contract.strict().keeps_bits(relation):
            observations += pair.differing_bits(partial(mismatch, gap=True))
    return StepComparison(tuple(observations), max(margins, default=None))


@dataclass(frozen=True)
class _Pair:
    """The real rows of one tensor in both runs, in the first run's order: [T, Hq, ...] with T * Hq > 0.

    Rows outside `compared` [T] may have any contents. `unit` converts them to the unit of `bound`. `allowance` raises a
    row's bound for its own keys, by token and head, and `sums` raises it for its sums, also by element. All cover the
    two runs together.
    """

    place: str
    rows: RealRows
    first: torch.Tensor
    other: torch.Tensor
    compared: torch.Tensor
    unit: float
    bounds: Callable[[], torch.Tensor]
    allowance: Callable[[int, int], torch.Tensor | float]
    sums: Callable[[int, int, int], float]

    @cached_property
    def bound(self) -> torch.Tensor:
        """Largest difference of two correct runs, shaped like `first`."""
        return self.bounds()

    def differing_bits(self, mismatch: Report) -> Iterator[Observation]:
        """Report rows whose bits differ."""
        bits = DType.of(self.first.dtype).bits
        first, other = self.first.view(bits), self.other.view(bits)
        if torch.equal(first, other):
            return
        differ = self._masked(first != other)
        if differ.any():
            at = int(differ.flatten().to(torch.uint8).argmax())
            yield mismatch(
                row=self._row(at), message=f"{self._words(at)}, where the bits must be the same; {self._count(differ)}"
            )

    def ratio(self) -> torch.Tensor:
        """Return difference over bound, infinite where only one of the two is a number."""
        difference = self.other.to(torch.float64).sub_(self.first).abs_()
        ratio = (difference.mul_(self.unit) if self.unit != 1 else difference).div_(self.bound)
        if bool(self.compared.all()) and isfinite(ratio.sum().item()):
            return ratio
        same = (self.first == self.other) | (self.first.isnan() & self.other.isnan())
        ratio = torch.where(torch.isfinite(ratio), ratio, inf)
        return torch.where(self._masked(~same), ratio, 0.0)

    def judge_again(self, ratio: torch.Tensor) -> None:
        """Apply the allowance to finite ratios above 1, row by row, until one stays above 1."""
        bound = self.bound

        def again(token: int, head: int) -> float:
            row, old = ratio[token, head], bound[token, head]
            allowed = old + self.allowance(token, head)
            ratio[token, head] = torch.where(row.isfinite(), row * old / allowed, row)
            if not row.dim():
                return row.item()
            return with_sums(row, allowed, partial(self.sums, token, head))

        if judged_again(ratio.amax(dim=-1) if ratio.dim() == 3 else ratio.clone(), again) is None:
            ratio.clamp_(max=1.0)

    def too_far_apart(self, ratio: torch.Tensor, largest: float, mismatch: Report) -> Observation:
        """Report two results that can't both be right."""
        distance = f"{largest:.3g} times the allowed difference" if largest < inf else "not both numbers"
        return mismatch(
            margin=largest if largest < inf else None,
            row=self._row(int(ratio.argmax())),
            message=f"{self._words(int(ratio.argmax()))}, {distance}; {self._count(ratio > 1)}",
        )

    def _masked(self, differ: torch.Tensor) -> torch.Tensor:
        return differ & self.compared.view(-1, *[1] * (differ.dim() - 1))

    def _words(self, at: int) -> str:
        place = self._place(at)
        element = f"element {place[2]}" if len(place) > 2 else "lse"
        where = f"{self.rows.name(self._row(at))}, {element}"
        values = (run[place].item() for run in (self.other, self.first))
        return "{}: {:.9g} instead of {:.9g}".format(where, *values)

    def _row(self, at: int) -> RowAddress:
        token, head, *_ = self._place(at)
        return self.rows.address(token, head)

    def _place(self, at: int) -> tuple[int, ...]:
        """Return token, head and, for an output, element of a flattened index."""
        return tuple(int(index) for index in torch.unravel_index(torch.tensor(at), self.first.shape))

    def _count(self, differ: torch.Tensor) -> str:
        by_row = differ.flatten(2).any(dim=-1) if differ.dim() == 3 else differ
        return f"{int(by_row.sum())} of {by_row.numel()} rows differ"


def _pairs(
    first: Evidence,
    output: Output,
    real: Callable[[torch.Tensor], torch.Tensor],
    at: torch.Tensor,
    contract: Contract,
) -> Iterator[_Pair]:
    """Yield the outputs of both runs, and the LSEs if any. `at` maps to the related run's packed rows."""
    if not first.out.numel():
        return
    compared = first.budget.answer.visible > 0
    if contract.empty_rows is Holds.ZERO:
        compared = torch.ones_like(compared)
    own, related = first.budget, first.budget
    if output.roundings != own.roundings:
        related = replace(own, roundings=output.roundings)

    def both(bound: Callable[[ErrorBudget], torch.Tensor]) -> Callable[[], torch.Tensor]:
        return lambda: bound(own) + bound(related)

    def out_allowance(token: int, head: int) -> torch.Tensor:
        return element_allowance(own, token, head) + element_allowance(related, token, head)

    def sums(token: int, head: int, element: int) -> float:
        return element_sums_allowance(own, token, head, element) + element_sums_allowance(related, token, head, element)

    def lse_allowance(token: int, head: int) -> float:
        return 2 * lse_ties_allowance(first.budget, token, head)

    yield _Pair(
        "out", first.rows, first.out, real(output.out)[at], compared, 1.0, both(element_bound), out_allowance, sums
    )
    if first.lse is not None and output.lse is not None:
        unit = log(2.0) if contract.lse is LseBase.TWO else 1.0
        yield _Pair(
            "lse", first.rows, first.lse, real(output.lse)[at], compared, unit, both(lse_bound), lse_allowance, sums
        )


def _tokens_of(q_lens: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
    """Return packed tokens of the requests at `positions`, in that order."""
    starts = [sum(q_lens[:position]) for position in positions]
    tokens = [
        start + token for start, position in zip(starts, positions, strict=True) for token in range(q_lens[position])
    ]
    return torch.tensor(tokens, dtype=torch.long)
