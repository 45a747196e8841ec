"""Rows that fail are judged again, by what is too dear to ask of every row: at most `MOST_ROWS_AGAIN` of an output.

What terms have in common (`ties`), and parts that are merged (`parts`), may add to the bounds.
"""

from collections.abc import Callable

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.parts import parts_allowance
from attnfuzz.harness.judge.ties import ties_allowance

MOST_ROWS_AGAIN = 64
"""Rows of one output that a tier judges again. A factor that is wrong by little makes every row suspect: over long
requests, looking at each would take hours, and where the worst all pass, the rest are like them."""


def element_allowance(budget: ErrorBudget, token: int, head: int) -> torch.Tensor:
    """What a row's own keys add to T1's bound, [Dv]."""
    return ties_allowance(budget, token, head) + parts_allowance(budget, token, head)


def judged_again(ratio: torch.Tensor, again: Callable[[int, int], float]) -> tuple[int, int] | None:
    """The row that fails worst even judged again; None if there is none.

    `ratio` [T, Hq] is each row's error over bound, and `again` that of a token and head judged again. Rows that no
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
