"""Which rows of an output belong to which request, and how to name one."""

from collections.abc import Sequence

import torch

from attnfuzz.harness.verdict.failures import RowAddress
from attnfuzz.kernels.backend import Attended


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

    def place(self, token: int) -> int:
        """The row of the output that has a packed token."""
        return token if self._places is None else int(self._places[token])

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
