"""Judging a step's writes: new tokens must be in their slots, and every other bit of the cache unchanged.

A row is one head of one slot. A new token's row is wrong if an element is outside its bounds (`WriteMismatch`), and
unwritten if it still has its earlier bits (`Unwritten`). Any other row that changed is a `StrayWrite`.
"""

import time
from collections.abc import Callable, Iterator

import torch

from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.verdict.failures import Kind, Observation, RowAddress
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.interface.backend import WrittenCache, WrittenTensor

_Report = Callable[..., Observation]


def judge_written(written: WrittenCache, report: _Report) -> Judgement:
    """Judge every tensor. `report` makes an observation of a kind, a place and a message."""
    began = time.perf_counter()
    found = [
        each for tensor in written.tensors if not tensor.as_due for each in _Tokens(tensor, written).observed(report)
    ]
    rows = sum(tensor.low.shape[0] * tensor.low.shape[1] for tensor in written.tensors)
    return Judgement(tuple(found), {}, rows, 0.0, time.perf_counter() - began)


class _Tokens:
    """The rows of the new tokens in one tensor."""

    def __init__(self, tensor: WrittenTensor, written: WrittenCache) -> None:
        self._tensor, self._tokens = tensor, written.tokens[tensor.first :]
        self._held = tensor.numbers(tensor.after[tensor.at[0], tensor.at[1]])
        self._changed = tensor.numbers(tensor.after) != tensor.numbers(tensor.before)

    def observed(self, report: _Report) -> Iterator[Observation]:
        """Yield the failures of this tensor, at most two."""
        tensor = self._tensor
        wrong = ~tensor.within(self._held)
        rows = wrong.any(-1)
        if rows.any():
            lost = rows & ~self._changed[tensor.at[0], tensor.at[1]].any(-1)
            yield self._wrong(wrong, rows, lost, report)
        elsewhere = self._changed.any(-1)
        for at in (tensor.at, tensor.free):
            elsewhere[at[0], at[1]] = False
        if elsewhere.any():
            yield self._stray(elsewhere, report)

    def _wrong(self, wrong: torch.Tensor, rows: torch.Tensor, lost: torch.Tensor, report: _Report) -> Observation:
        tensor = self._tensor
        unwritten = bool(lost.equal(rows))
        # If a token went to another one's row, report that row, not the unwritten one.
        n, head = (rows if unwritten else rows & ~lost).nonzero()[0].tolist()
        element = int(wrong[n, head].nonzero()[0])
        request, token = self._tokens[n]
        due = " to ".join(dict.fromkeys(f"{float(each[n, head, element]):.6g}" for each in (tensor.low, tensor.high)))
        place = f"{tensor.name}, {self._slot(*tensor.at[:, n].tolist())}, head {head}, element {element}"
        message = f"{place} holds {self._number(self._held[n, head, element])}"
        message += ", its old value" if unwritten else self._whose(self._held[n, head])
        message += f"; token {token} of request {request} has {due}; {int(rows.sum())} of {rows.numel()} rows are wrong"
        return report(
            kind=Kind.UNWRITTEN if unwritten else Kind.WRITE_MISMATCH,
            place=tensor.name,
            tier=Tier.T0,
            row=RowAddress(request, token, head),
            message=message,
        )

    def _stray(self, elsewhere: torch.Tensor, report: _Report) -> Observation:
        tensor = self._tensor
        page, slot, head = elsewhere.nonzero()[0].tolist()
        element = int(self._changed[page, slot, head].nonzero()[0])
        row = tensor.numbers(tensor.after[page, slot, head])
        before = tensor.numbers(tensor.before[page, slot, head])
        message = (
            f"{tensor.name}, {self._slot(page, slot)}, head {head}, element {element} changed from "
            f"{self._number(before[element])} to {self._number(row[element])}"
            f"{self._whose(row)}; no new token belongs there; {int(elsewhere.sum())} such rows changed"
        )
        return report(kind=Kind.STRAY_WRITE, place=tensor.name, tier=Tier.T0, message=message)

    def _whose(self, row: torch.Tensor) -> str:
        """Return a clause on the new token whose value a row holds, or "" if there is none, or several."""
        same = self._tensor.within(row).all(-1).nonzero().tolist()
        if len(same) != 1:
            return ""
        ((n, head),) = same
        request, token = self._tokens[n]
        return f", the value of token {token} of request {request} in head {head}"

    def _slot(self, page: int, slot: int) -> str:
        if not self._tensor.paged:
            return f"row {slot}"
        hole = self._tensor.hole
        return f"page {page + len(hole) * (page >= hole.start) if hole else page}, slot {slot}"

    def _number(self, bits: torch.Tensor) -> str:
        return f"{float(bits.view(self._tensor.low.dtype)):.6g}"
