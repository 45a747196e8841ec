"""Evidence for the tiers: the rows of an output with their expected values, and the result of a tier.

A request with NaN or infinity in its queries, keys or values has no correct output, and is not judged: whether a NaN
reaches a row depends on the order of its sums, and one kernel masks a value that another multiplies by 0.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, log
from typing import NamedTuple

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.verdict.failures import Kind, Observation, RowAddress
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.interface.backend import Attended, Output
from attnfuzz.reference.contract import Contract, Holds, LseBase
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.problem import Answer, Problem


class RealRows:
    """The tokens of all attended requests, packed in order, and their places in an output of `rows` rows.

    Rows in `aside`, (first, count) each, belong neither to requests nor to padding, and are not judged.
    """

    def __init__(
        self, attended: Sequence[Attended], rows: int, device: torch.device, aside: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.q_lens = tuple(entry.query.shape[0] for entry in attended)
        self.kv_lens = tuple(entry.key.shape[0] for entry in attended)
        self.tokens = sum(self.q_lens)
        self.rows = rows
        self.last = max(
            (entry.first_row + q_len for entry, q_len in zip(attended, self.q_lens, strict=True)), default=0
        )
        self._device, self._aside = device, aside
        self._places: torch.Tensor | None = None
        end = 0
        for entry, q_len in zip(attended, self.q_lens, strict=True):
            if q_len and entry.first_row != end:
                places = [
                    row
                    for entry, q_len in zip(attended, self.q_lens, strict=True)
                    for row in range(entry.first_row, entry.first_row + q_len)
                ]
                self._places = torch.tensor(places, device=device)
                break
            end += q_len

    def real(self, tensor: torch.Tensor) -> torch.Tensor:
        """Select the rows of requests from a tensor [rows, ...]: [tokens, ...]."""
        return tensor[: self.tokens] if self._places is None else tensor[self._places]

    def padded(self, tensor: torch.Tensor) -> torch.Tensor:
        """Select the rows that belong to no request."""
        if self._places is None and not self._aside:
            return tensor[self.tokens :]
        is_padding = torch.ones(self.rows, dtype=torch.bool, device=self._device)
        is_padding[slice(self.tokens) if self._places is None else self._places] = False
        for first, count in self._aside:
            is_padding[first : first + count] = False
        return tensor[is_padding]

    def place(self, token: int) -> int:
        """Return the output row of a packed token."""
        return token if self._places is None else int(self._places[token])

    def name(self, row: RowAddress) -> str:
        """Describe the address of a row in words."""
        lengths = f"q_len {self.q_lens[row.request]}, kv_len {self.kv_lens[row.request]}"
        return f"request {row.request} ({lengths}), token {row.token}, head {row.head}"

    def address(self, token: int, head: int) -> RowAddress:
        """Return the address of the row of a packed token and a head. Raises IndexError."""
        for request, q_len in enumerate(self.q_lens):
            if token < q_len:
                return RowAddress(request, token, head)
            token -= q_len
        raise IndexError(f"there are {self.tokens} tokens: none is {token + self.tokens}")


def packed_problem(output: Output, rows: RealRows, geometry: Geometry) -> Problem:
    """Return the attention problem of an output's real rows, with the requested scales and sinks."""
    attended = output.attended
    _, heads, dim = output.out.shape
    if not attended:
        nothing = output.out.new_empty((0, heads, 1))
        query, key, value = nothing, nothing[:, : geometry.kv_heads], output.out.new_empty((0, geometry.kv_heads, dim))
    elif len(attended) == 1:
        query, key, value = attended[0].query, attended[0].key, attended[0].value
    else:
        query = torch.cat([entry.query for entry in attended])
        key = torch.cat([entry.key for entry in attended])
        value = torch.cat([entry.value for entry in attended])
    masks = tuple(entry.mask for entry in attended if entry.mask is not None)
    return Problem(
        query,
        key,
        value,
        rows.q_lens,
        rows.kv_lens,
        output.bmm1_scale,
        output.bmm2_scale,
        window_left=geometry.window_left,
        causal=not masks,
        sinks=output.sinks,
        soft_cap=geometry.soft_cap,
        masks=masks or None,
    )


def unanswered(answer: Answer, rows: RealRows) -> frozenset[int]:
    """Return the requests with a row whose answer, or error bound, is not a number. Needs the answer's moments."""
    assert answer.moments is not None
    if not answer.lse.numel():
        return frozenset()
    # Sums and the maximum propagate NaN, so these are almost always enough.
    sizes = answer.out.sum() + answer.moments.magnitude.sum()
    if isfinite(sizes.item()) and answer.lse.max().item() < torch.inf:
        return frozenset()
    bad = ~answer.out.isfinite().all(dim=-1) | ~answer.moments.magnitude.isfinite()
    bad |= answer.lse.isnan() | (answer.lse == torch.inf)
    by_request = bad.any(dim=-1).split(rows.q_lens)
    return frozenset(request for request, found in enumerate(by_request) if bool(found.any()))


def set_aside(output: Output, requests: Collection[int]) -> tuple[Output, RealRows]:
    """Drop the queries and keys of some requests from the output. Returns it with the rows left to judge."""
    aside = [(entry.first_row, entry.query.shape[0]) for at, entry in enumerate(output.attended) if at in requests]
    attended = tuple(_without_tokens(entry) if at in requests else entry for at, entry in enumerate(output.attended))
    rows = RealRows(attended, output.out.shape[0], output.out.device, aside)
    return replace(output, attended=attended), rows


def _without_tokens(entry: Attended) -> Attended:
    mask = None if entry.mask is None else entry.mask[:0, :0]
    return Attended(entry.first_row, entry.query[:0], entry.key[:0], entry.value[:0], mask)


Report = Callable[..., Observation]
"""Makes an Observation of the judged step from the given fields."""


class TierResult(NamedTuple):
    """A statistical tier's result for one place: the margin (error over bound), and the failure if that exceeds 1.

    `worst` is the token and head of the failing row, or None if the failure is about all rows.
    """

    margin: float
    failure: Observation | None = None
    worst: tuple[int, int] | None = None


@dataclass(frozen=True)
class Evidence:
    """The real rows of an output (out [T, Hq, Dv]; lse [T, Hq] in the contract's base, or None) and the padded rows.

    `rows` maps them to requests, `budget` bounds the error of a correct kernel, and `report` makes an observation.
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
        """Return the evidence of `output`. Its LSE is used only if the contract states its base."""
        lse = rows.real(output.lse) if output.lse is not None and contract.lse else None
        return cls(rows, budget, contract, report, rows.real(output.out), lse, rows.padded(output.out))

    @cached_property
    def sees(self) -> torch.Tensor:
        """Whether tokens see a key: bool [T]."""
        return self.budget.answer.visible > 0

    @cached_property
    def all_see(self) -> bool:
        """Whether every token sees a key."""
        return bool(self.sees.all())

    @cached_property
    def error(self) -> torch.Tensor:
        """`out` minus its answer in fp64, 0 where it is not finite or sees no key (which T0 judges)."""
        difference = self._difference
        if not self.finite:
            difference = torch.where(torch.isfinite(difference), difference, 0.0)
        return difference if self.all_see else difference.masked_fill(~self.sees.view(-1, 1, 1), 0.0)

    @cached_property
    def _difference(self) -> torch.Tensor:
        return self.out.to(torch.float64).sub_(self.budget.answer.out)

    @cached_property
    def finite(self) -> bool:
        """Whether `out` is finite throughout. A sum propagates NaN and infinity."""
        return isfinite(self._difference.sum().item())

    @cached_property
    def error_size(self) -> torch.Tensor:
        """Absolute value of `error`."""
        return self.error.abs()

    @property
    def lse_unit(self) -> float:
        """The contract's LSE unit in natural units."""
        return log(2.0) if self.contract.lse is LseBase.TWO else 1.0

    @cached_property
    def comparable(self) -> torch.Tensor:
        """Mask of the LSEs to compare, bool [T, Hq]: finite, of rows that see a key or must have their sink's LSE."""
        assert self.lse is not None
        comparable = torch.isfinite(self.lse) & torch.isfinite(self.budget.answer.lse)
        return comparable if self.contract.empty_rows is Holds.ZERO else comparable & self.sees.unsqueeze(-1)

    def lse_error(self, unit: float) -> torch.Tensor:
        """Return the LSE minus its answer: fp64 [T, Hq] in natural units, 0 where not comparable. `unit` scales it."""
        assert self.lse is not None
        difference = self.lse.to(torch.float64).mul_(unit).sub_(self.budget.answer.lse)
        return torch.where(self.comparable, difference, 0.0)

    @cached_property
    def own_lse_error(self) -> torch.Tensor:
        """`lse_error` in the contract's unit."""
        return self.lse_error(self.lse_unit)

    def row_of(self, index: int) -> tuple[int, int]:
        """Return token and head of an element of a flattened [T, Hq]."""
        return divmod(index, self.out.shape[1])

    def failed(
        self, tier: Tier, place: str, margin: float, message: str, worst: tuple[int, int] | None = None
    ) -> TierResult:
        """Return the result for a failure of "out" or "lse", in the row `worst` or in all rows."""
        kind = Kind.OUTPUT_MISMATCH if place == "out" else Kind.LSE_MISMATCH
        row = None if worst is None else self.rows.address(*worst)
        failure = self.report(kind=kind, place=place, tier=tier, margin=margin, message=message, row=row)
        return TierResult(margin, failure, worst)

    def name(self, worst: tuple[int, int]) -> str:
        """Describe the row of a token and head."""
        return self.rows.name(self.rows.address(*worst))

    def share(self, wrong: torch.Tensor | int) -> str:
        """Describe the share of wrong rows among those that see a key; `wrong` is bool [T, Hq] or a count."""
        return f"{int(wrong.sum() if isinstance(wrong, torch.Tensor) else wrong)} of {self.seeing_rows} rows are wrong"

    @cached_property
    def seeing_rows(self) -> int:
        """The number of rows that see a key."""
        return (len(self.sees) if self.all_see else int(self.sees.sum())) * self.out.shape[1]
