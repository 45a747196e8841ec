"""Which rows of an output belong to which request, and the problem that they answer.

A request has no right answer if NaN or infinity is among what it attends with or to. No kernel is held to numbers for
it: whether a NaN reaches a row depends on the order of its sums, and what one kernel masks another multiplies by 0.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from attnfuzz.harness.verdict.failures import RowAddress
from attnfuzz.kernels.backend import Attended, Output
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.problem import Answer, Problem


class RealRows:
    """The tokens of all attended requests, packed in their order, as places in an output of `rows` rows.

    Rows in `aside`, (first, count) each, are neither a request's nor padding: nobody looks at them.
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
        """The rows of requests, of a tensor [rows, ...]: [tokens, ...]."""
        return tensor[: self.tokens] if self._places is None else tensor[self._places]

    def padded(self, tensor: torch.Tensor) -> torch.Tensor:
        """The rows that belong to no request."""
        if self._places is None and not self._aside:
            return tensor[self.tokens :]
        is_padding = torch.ones(self.rows, dtype=torch.bool, device=self._device)
        is_padding[slice(self.tokens) if self._places is None else self._places] = False
        for first, count in self._aside:
            is_padding[first : first + count] = False
        return tensor[is_padding]

    def name(self, row: RowAddress) -> str:
        """Return the address of a row in words."""
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
    """The attention problem of an output's real rows, with the scales and sinks that its backend was asked for."""
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
    return Problem(
        query,
        key,
        value,
        rows.q_lens,
        rows.kv_lens,
        output.bmm1_scale,
        output.bmm2_scale,
        window_left=geometry.window_left,
        sinks=output.sinks,
        soft_cap=geometry.soft_cap,
    )


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
