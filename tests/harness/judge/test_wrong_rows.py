"""A failing row is reported with the expected numbers beside it, and the errors of the rows around it."""

from types import SimpleNamespace
from typing import cast

import torch

from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.judge.wrong_rows import wrong_rows


def evidence(out: torch.Tensor, expected: torch.Tensor) -> Evidence:
    answer = SimpleNamespace(out=expected.double(), lse=expected[..., 0].double())
    error = (out.double() - expected).nan_to_num(0.0)
    return cast(
        "Evidence",
        SimpleNamespace(
            out=out,
            lse=out[..., 0],
            budget=SimpleNamespace(answer=answer),
            error_size=error.abs(),
            own_lse_error=error[..., 0],
        ),
    )


def test_the_worst_element_and_row_are_in_the_part_that_is_shown() -> None:
    expected = torch.arange(100 * 20 * 128, dtype=torch.float64).reshape(100, 20, 128)
    out = expected.clone()
    out[97, 18, 127] += 3
    out[97, 18, 126] = torch.nan
    rows = wrong_rows(evidence(out, expected), "out", (97, 18))
    assert (rows.first, len(rows.seen), rows.worst) == (112, 16, (97, 18))
    assert rows.seen[-2:] == (None, expected[97, 18, 127].item() + 3)
    assert (rows.token, rows.head, len(rows.errors), len(rows.errors[0])) == (52, 12, 8, 48)
    assert rows.errors[18 - rows.head][97 - rows.token] == 3
    assert sum(map(sum, rows.errors)) == 3


def test_an_lse_is_one_number() -> None:
    expected = torch.ones(2, 1, 4)
    out = expected.clone()
    out[1, 0, 0] = 1.5
    rows = wrong_rows(evidence(out, expected), "lse", (1, 0))
    assert (rows.expected, rows.seen, rows.errors) == ((1.0,), (1.5,), ((0.0, 0.5),))
