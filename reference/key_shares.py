"""Keys that several ranks share in turns, as with context parallelism."""

from dataclasses import dataclass
from typing import TypeVar

import torch

Position = TypeVar("Position", int, torch.Tensor)


@dataclass(frozen=True)
class KeyShares:
    """Each request's keys on `ranks` ranks: the first `interleave` on rank 0, the next ones on rank 1, and so on."""

    ranks: int
    interleave: int

    def rank_of(self, position: Position) -> Position:
        """Return the rank that holds the key at a position of its request, or those of int64 positions."""
        return position // self.interleave % self.ranks
