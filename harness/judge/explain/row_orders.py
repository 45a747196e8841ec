"""Claims about the order of all rows of an output: they are packed without some requests, or with room for others.

Unlike claims about one row, they explain rows that see no key, too: the result of another request lies there.
"""

from collections.abc import Callable, Sequence

import torch

from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.judge.explain.inquiry import Explanation, filled
from attnfuzz.reference.mistake import Mistake

Order = Callable[[Sequence[int], Sequence[int]], list[int | None]]
"""Returns, for query and KV lengths of requests, the packed token whose result each row has, or None for no result."""


def _without_keyless(q_lens: Sequence[int], kv_lens: Sequence[int]) -> list[int | None]:
    order: list[int | None] = []
    first = 0
    for q_len, kv_len in zip(q_lens, kv_lens, strict=True):
        if kv_len:
            order += range(first, first + q_len)
        first += q_len
    return order


def _with_idle(q_lens: Sequence[int], kv_lens: Sequence[int]) -> list[int | None]:
    del kv_lens
    order: list[int | None] = []
    first = 0
    for q_len in q_lens:
        order += range(first, first + q_len) if q_len else (None,)
        first += q_len
    return order


_ORDERS: dict[str, Order] = {
    "as if requests without keys had no rows: those of later requests come too early": _without_keyless,
    "as if requests without queries had a row: those of later requests come too late": _with_idle,
}


class RowOrders:
    """The orders of a step's rows, in words, with which its output agrees in all runs so far."""

    def __init__(self, evidence: Evidence) -> None:
        self.words = _orders(evidence)
        self._confirmed = False

    def test(self, evidence: Evidence) -> None:
        """Drop the orders that a further run of the same lengths refutes."""
        self.words = [each for each in _orders(evidence) if each in self.words]
        self._confirmed = True

    def conclusion(self) -> Explanation | None:
        """Return the first order that a further run has confirmed, or None."""
        if not (self.words and self._confirmed):
            return None
        return Explanation(filled(self.words[0]), (Mistake.OTHER_ROW,))


def _orders(evidence: Evidence) -> list[str]:
    """Return the orders in which the rows hold right results, where they are not in their own."""
    problem = evidence.budget.problem
    orders = ((words, order(problem.q_lens, problem.kv_lens)) for words, order in _ORDERS.items())
    return [words for words, order in orders if _holds(evidence, order)]


def _holds(evidence: Evidence, order: Sequence[int | None]) -> bool:
    """Return whether each row with a result has that of `order`, and one that moved is not right in its own place."""
    places = [(row, token) for row, token in enumerate(order[: len(evidence.out)]) if token is not None]
    if all(row == token for row, token in places):
        return False
    rows, tokens = torch.tensor(places, device=evidence.out.device).T
    seen, answer, bound = (
        evidence.out[rows].to(torch.float64),
        evidence.budget.answer.out,
        element_bound(evidence.budget),
    )
    moved = (rows != tokens).view(-1, 1, 1) & ((seen - answer[rows]).abs() > bound[rows])
    return bool(moved.any()) and bool(((seen - answer[tokens]).abs() <= bound[tokens]).all())
