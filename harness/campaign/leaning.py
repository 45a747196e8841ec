"""What the next slice of a backend leans to: what the campaign has not reached there, though it could."""

from collections.abc import Collection
from functools import lru_cache

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.strategies.coverage import Pair, choose_lean, possible_pairs
from attnfuzz.strategies.lean import Lean


def lean_to_unreached(backend: str, reached: Collection[Pair], seed: int) -> Lean:
    """Favour some of what `backend` can reach and has not `reached`, chosen by `seed`."""
    return choose_lean(_possible(backend).difference(reached), reached, seed)


@lru_cache(maxsize=16)
def _possible(backend: str) -> frozenset[Pair]:
    return possible_pairs(resolve(backend).capability)
