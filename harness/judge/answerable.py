"""Requests without a right answer: NaN or infinity among what they attend with or to leaves nothing to compare with.

No kernel is held to numbers for them, whatever it gives: whether a NaN reaches a row depends on the order of its sums,
and what one kernel masks another multiplies by 0.
"""

from collections.abc import Collection
from dataclasses import replace

import torch

from attnfuzz.harness.judge.real_rows import RealRows
from attnfuzz.kernels.backend import Attended, Output
from attnfuzz.reference.problem import Answer


def unanswered(answer: Answer, rows: RealRows) -> frozenset[int]:
    """The requests with a row whose answer, or what bounds its error, is no number. The moments must be there."""
    assert answer.moments is not None
    if not answer.lse.numel():
        return frozenset()
    # Sums and the maximum keep a NaN: almost always, nothing else need be looked at.
    sizes = answer.out.sum() + answer.moments.magnitude.sum()
    if bool(sizes.isfinite()) and answer.lse.max().item() < torch.inf:
        return frozenset()
    bad = ~answer.out.isfinite().all(dim=-1) | ~answer.moments.magnitude.isfinite()
    bad |= answer.lse.isnan() | (answer.lse == torch.inf)
    by_request = bad.any(dim=-1).split(rows.q_lens)
    return frozenset(request for request, found in enumerate(by_request) if bool(found.any()))


def set_aside(output: Output, requests: Collection[int]) -> tuple[Output, RealRows]:
    """The output with nothing to attend to for some requests, which keep their numbers, and its rows without theirs."""
    aside = [(entry.first_row, entry.query.shape[0]) for at, entry in enumerate(output.attended) if at in requests]
    attended = tuple(
        Attended(entry.first_row, entry.query[:0], entry.key[:0], entry.value[:0]) if at in requests else entry
        for at, entry in enumerate(output.attended)
    )
    rows = RealRows(attended, output.out.shape[0], output.out.device, aside)
    return replace(output, attended=attended), rows
