"""What the tiers judge: one output beside its answer, and what a tier says about it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import NamedTuple

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.real_rows import RealRows
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.kernels.backend import Output
from attnfuzz.reference.contract import Contract, Holds, LseBase

Report = Callable[..., Observation]
"""An Observation of the step under judgement, from the fields that differ."""


class Heard(NamedTuple):
    """What a statistical tier says about one place: its margin, error over bound, and the failure if that exceeds 1.

    `worst` is the row that the failure is about, a token and a head; None if it is about all of them.
    """

    margin: float
    failure: Observation | None = None
    worst: tuple[int, int] | None = None


@dataclass(frozen=True)
class Evidence:
    """The real rows of an output: out [T, Hq, Dv], lse [T, Hq] in the contract's base or None; and the padded rows.

    `rows` says whose they are, and `budget` what the error of a correct kernel may be. `report` makes an observation.
    """

    rows: RealRows
    budget: ErrorBudget
    contract: Contract
    report: Report
    out: torch.Tensor
    lse: torch.Tensor | None
    padded: torch.Tensor

    @classmethod
    def of(cls, output: Output, rows: RealRows, budget: ErrorBudget, contract: Contract, report: Report) -> "Evidence":
        """The evidence of `output`, whose LSE counts only if the contract states its base."""
        lse = rows.real(output.lse) if output.lse is not None and contract.lse else None
        return cls(rows, budget, contract, report, rows.real(output.out), lse, rows.padded(output.out))

    @cached_property
    def sees(self) -> torch.Tensor:
        """Which tokens see a key: bool [T]."""
        return self.budget.answer.visible > 0

    @cached_property
    def error(self) -> torch.Tensor:
        """What `out` is more than its answer in fp64, 0 where it is not finite or sees no key: that is for T0."""
        difference = self.out.to(torch.float64).sub_(self.budget.answer.out)
        if bool(self.sees.all()) and bool(difference.sum().isfinite()):
            return difference
        return torch.where(torch.isfinite(difference) & self.sees.view(-1, 1, 1), difference, 0.0)

    @property
    def lse_unit(self) -> float:
        """The contract's unit of an LSE, in natural units."""
        return log(2.0) if self.contract.lse is LseBase.TWO else 1.0

    @cached_property
    def comparable(self) -> torch.Tensor:
        """Which LSEs are to be compared: finite ones of rows that see a key, or a sink if it must count; bool [T, Hq].

        There must be an LSE.
        """
        assert self.lse is not None
        comparable = torch.isfinite(self.lse) & torch.isfinite(self.budget.answer.lse)
        return comparable if self.contract.empty_rows is Holds.ZERO else comparable & self.sees.unsqueeze(-1)

    def lse_error(self, unit: float) -> torch.Tensor:
        """What the LSE, in this unit, is more than its answer: fp64 [T, Hq] in natural units, 0 where none is."""
        assert self.lse is not None
        difference = self.lse.to(torch.float64).mul_(unit).sub_(self.budget.answer.lse)
        return torch.where(self.comparable, difference, 0.0)

    def row_of(self, index: int) -> tuple[int, int]:
        """Token and head of an element of a flattened [T, Hq]."""
        return divmod(index, self.out.shape[1])

    def share(self, wrong: torch.Tensor | int) -> str:
        """How many rows are wrong, of those that see a key; `wrong` is bool [T, Hq] or their number."""
        return f"{int(wrong.sum() if isinstance(wrong, torch.Tensor) else wrong)} of {self.seeing_rows} rows are wrong"

    @property
    def seeing_rows(self) -> int:
        """The number of rows that see a key."""
        return int(self.sees.sum()) * self.out.shape[1]
