"""A pool of the keys and values of a step, to which lists of slots point."""

from typing import TYPE_CHECKING

import torch

from attnfuzz.kernels.sparse.inputs import NAN_BYTE, OpInputs, second_keys
from attnfuzz.reference.sparse import packed
from attnfuzz.reference.sparse.case import KvFormat

if TYPE_CHECKING:
    from attnfuzz.kernels.sparse.session import ChainSession


class KeyPool:
    """One KV pool of a step, at whose `slots` the keys of all requests are; packed if `at` is None."""

    def __init__(
        self, session: "ChainSession", inputs: OpInputs, prefix: str, slots: int, at: torch.Tensor | None
    ) -> None:
        self._session, self._format, self.prefix = session, inputs.geometry.format, prefix
        lengths = [request.kv_len for request in inputs.step.requests]
        if prefix:
            lengths = [second_keys(each) for each in lengths]
            most = max(sum(second_keys(request.kv_len) for request in step.requests) for step in session.case.steps)
            # At least one more, which no list has, in whole pages.
            slots = (most // inputs.geometry.page_size + 1) * inputs.geometry.page_size
        self.firsts = [sum(lengths[:b]) for b in range(len(lengths))]
        self.slots = slots
        keys, values = inputs.contents(lengths, salt=1 if prefix else 0)
        at = torch.arange(len(keys)) if at is None else at
        self._keys = _spread(keys, at, slots)
        self._values = None if values is None else _spread(values, at, slots)
        self._value_dim, self._page_size = inputs.geometry.value_dim, inputs.geometry.page_size
        self._packed_step = not prefix and slots == inputs.keys

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the pool in guarded memory. Packed keys of a prefill are its own."""
        keys = packed.in_pages(self._keys, self._page_size) if self._format is KvFormat.PAGED else self._keys
        parts = {"keys": keys, "values": self._values}
        made = {f"{self.prefix}{name}": part for name, part in parts.items() if part is not None}
        if self._packed_step:
            return made
        return {name: self._session.pool(name, part) for name, part in made.items()}

    def chosen(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values at slots [n], each [n, kv_heads, dim]."""
        keys = self._keys[slots]
        if self._format is KvFormat.PACKED:
            keys = packed.unpack(keys)[:, None]
        elif self._format is KvFormat.PAGED:
            keys = packed.unpack_paged(keys)[:, None]
        values = keys[..., : self._value_dim] if self._values is None else self._values[slots]
        return keys, values


def _spread(rows: torch.Tensor, at: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` rows of NaN, with `rows` at some of them."""
    bits = torch.full((count, *rows.shape[1:-1], rows.shape[-1] * rows.itemsize), NAN_BYTE, dtype=torch.uint8)
    bits[at] = rows.contiguous().view(torch.uint8)
    return bits.view(rows.dtype)
