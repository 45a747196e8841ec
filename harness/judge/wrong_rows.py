"""The numbers of a failing row beside the expected ones, and the errors of the rows around it."""

from math import isfinite

import torch

from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.verdict.failures import WrongRows

_ELEMENTS = 16
_TOKENS = 48
_HEADS = 8
"""Limits of a report's size."""


def wrong_rows(evidence: Evidence, place: str, worst: tuple[int, int]) -> WrongRows:
    """Return the part around the row `worst` (token, head) of "out", or of "lse" in natural units."""
    token, head = worst
    if place == "lse":
        assert evidence.lse is not None
        error = evidence.own_lse_error
        expected = evidence.budget.answer.lse[token, head : head + 1]
        seen = expected + error[token, head]
        by_row, wrongest = error.abs(), 0
    else:
        expected, seen = evidence.budget.answer.out[token, head], evidence.out[token, head].double()
        by_row = evidence.error_size.amax(dim=-1)
        wrongest = int(evidence.error_size[token, head].argmax())
    first = _begin(wrongest, len(expected), _ELEMENTS)
    first_token, first_head = _begin(token, by_row.shape[0], _TOKENS), _begin(head, by_row.shape[1], _HEADS)
    errors = by_row[first_token : first_token + _TOKENS, first_head : first_head + _HEADS].T
    return WrongRows(
        first=first,
        expected=_floats(expected[first : first + _ELEMENTS]),
        seen=_floats(seen[first : first + _ELEMENTS]),
        token=first_token,
        head=first_head,
        worst=worst,
        errors=tuple(tuple(map(_short, each)) for each in errors.tolist()),
    )


def _begin(index: int, size: int, most: int) -> int:
    """Return the begin of a window of at most `most` of `size` entries, with `index` in its middle if possible."""
    return max(0, min(index - most // 2, size - most))


def _floats(tensor: torch.Tensor) -> tuple[float | None, ...]:
    return tuple(_short(value) if isfinite(value) else None for value in tensor.tolist())


def _short(value: float) -> float:
    # Six digits are enough to read, and keep logs small.
    return float(f"{value:.6g}")
