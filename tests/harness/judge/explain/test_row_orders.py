"""Rows that lie where those of other requests belong are explained as a whole, also if they see no key."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.judge.explain import Explanation, RowOrders
from attnfuzz.reference.mistake import Mistake

WITHOUT_KEYS = ((1, 20), (2, 0), (1, 7))
WITHOUT_QUERIES = ((1, 20), (0, 7), (2, 33))


def evidence(layer: Any, order: list[int], seed: int = 0) -> Evidence:
    """An output in which each row has the result of another token, or zeros for -1."""
    output = replace(layer, seed=seed).run()
    rows = torch.cat((output.out, torch.zeros_like(output.out[:1])))[order]
    found: Evidence | None = replace(layer, seed=seed).judged(replace(output, out=rows)).evidence
    assert found is not None
    return found


def concluded(layer: Any, order: list[int], again: list[int]) -> Explanation | None:
    found = RowOrders(evidence(layer, order))
    assert found.conclusion() is None, "no further run has confirmed it"
    found.test(evidence(layer, again, seed=1))
    return found.conclusion()


@pytest.mark.parametrize(
    ("lengths", "order", "words"),
    [
        (
            WITHOUT_KEYS,
            [0, 3, -1, -1],
            "as if requests without keys had no rows: those of later requests come too\nearly",
        ),
        (
            WITHOUT_QUERIES,
            [0, -1, 1],
            "as if requests without queries had a row: those of later requests come too\nlate",
        ),
    ],
)
def test_rows_that_are_shifted_by_requests_without_keys_or_queries_are_named(
    layer: Any, lengths: tuple[tuple[int, int], ...], order: list[int], words: str
) -> None:
    shifted = replace(layer, lengths=lengths)
    found = concluded(shifted, order, order)
    assert found is not None
    assert (found.words, found.mistakes) == (words, (Mistake.OTHER_ROW,))
    assert concluded(shifted, order, list(range(len(order)))) is None, "a run that passes refutes it"


@pytest.mark.parametrize(
    ("lengths", "order"),
    [
        (WITHOUT_KEYS, [0, 1, 2, 3]),
        (WITHOUT_KEYS, [3, 3, -1, -1]),
        (WITHOUT_KEYS, [0, -1, 3, -1]),
        (((1, 9),) * 3, [2, 0, 1]),
    ],
    ids=["right", "first row wrong", "shifted by less", "no such request"],
)
def test_other_orders_are_not(layer: Any, lengths: tuple[tuple[int, int], ...], order: list[int]) -> None:
    assert concluded(replace(layer, lengths=lengths), order, order) is None
