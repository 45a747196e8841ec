"""The keys and values that a case's slots hold, drawn once for each slot's longest step."""

import torch

from attnfuzz.reference.case import Case
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.values import Role, draw


class SlotTokens:
    """Keys [n, heads, dim_k] and values [n, heads, dim_v] of all slots, one after another in the order of slots.

    `spans` says where a slot's tokens lie. `extra` tokens that belong to no slot follow. Where values are `latent`, they
    are the first elements of the keys. `stream` tells apart several sets of tokens of one case.
    """

    def __init__(
        self,
        case: Case,
        *,
        heads: int,
        key_dim: int,
        value_dim: int,
        dtype: DType,
        stream: int = 0,
        extra: int = 0,
        latent: bool = False,
    ) -> None:
        self.spans: dict[int, range] = {}
        total = 0
        for slot, length in case.slot_lengths().items():
            self.spans[slot] = range(total, total + length)
            total += length
        self.extra = range(total, total + extra)

        def drawn(role: Role, dim: int) -> torch.Tensor:
            shape = (total + extra, heads, dim)
            return draw(case.values, role, shape, seed=case.seed, stream=stream).to(dtype.torch_dtype)

        self.key = drawn(Role.KEY, key_dim)
        self.value = self.key[..., :value_dim] if latent else drawn(Role.VALUE, value_dim)

    def keys(self, slot: int, length: int) -> torch.Tensor:
        """Keys of a slot's first `length` tokens [length, heads, dim_k]."""
        return self.key[self.spans[slot].start :][:length]

    def values(self, slot: int, length: int) -> torch.Tensor:
        """Values of a slot's first `length` tokens [length, heads, dim_v]."""
        return self.value[self.spans[slot].start :][:length]
