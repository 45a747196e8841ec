"""The rows of an output on which claims are tested: a sample of the wrong and the right ones."""

from typing import NamedTuple

import torch

from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.judge.explain.claim import Aspect
from attnfuzz.harness.judge.explain.paged_call import PagedCall
from attnfuzz.harness.judge.explain.wrong_row import WrongRow
from attnfuzz.harness.judge.lse_bound import lse_bound

_FITTED = 16, 8
"""Numbers of wrong and right rows in the run in which claims are fitted: each row costs one attention per claim."""

_FURTHER = 8, 4
"""Numbers of wrong and right rows in a further run."""

_LONG = 8192
_OF_LONG = 3, 3
"""Numbers of wrong and right rows if a row is longer than `_LONG`."""


class SampledRow(NamedTuple):
    """A row, and whether its error exceeds the judge's bound."""

    row: WrongRow
    wrong: bool


def worst_row(evidence: Evidence, worst: tuple[int, int], call: PagedCall | None) -> WrongRow:
    """Return the row at `worst`, a token and a head. `call` produced it, if known."""
    token, head = worst
    lse = None if evidence.lse is None else evidence.lse[token, head].item() * evidence.lse_unit
    budget, out = evidence.budget, evidence.out[token, head]
    return WrongRow(
        budget.problem, budget.answer, budget, token, head, out, lse, call=call, place=evidence.rows.place(token)
    )


def sampled_rows(
    evidence: Evidence, at: tuple[int, int], aspect: Aspect, call: PagedCall | None, *, failed: bool
) -> list[SampledRow]:
    """Return rows spread evenly over the wrong and the right ones, all with finite numbers, and keys or an LSE.

    The row `at` is among them, and counts as wrong if it `failed` in any tier.
    """
    finite = torch.isfinite(evidence.out).all(dim=-1)
    if aspect is Aspect.OUT:
        wrong = (evidence.error.abs() > element_bound(evidence.budget)).any(dim=-1)
        finite &= evidence.sees.unsqueeze(-1)
    else:
        wrong = evidence.own_lse_error.abs() > lse_bound(evidence.budget)
        finite &= evidence.comparable
    if failed:
        wrong[at] = True
    long = bool((evidence.budget.answer.visible > _LONG).any())
    numbers = _OF_LONG if long else _FITTED if failed else _FURTHER
    places = []
    for mask, most in zip((wrong & finite, ~wrong & finite), numbers, strict=True):
        all_of_them = mask.nonzero()
        count = len(all_of_them)
        if count:
            places += all_of_them[torch.linspace(0, count - 1, min(count, most)).round().long()].tolist()
    if list(at) not in places and bool(finite[at]):
        places.append(list(at))
    return [SampledRow(worst_row(evidence, (token, head), call), bool(wrong[token, head])) for token, head in places]
