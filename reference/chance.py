"""Random numbers for the tokens of several runs, with one stream per run.

A token's numbers depend on the seed, its run's stream and its index in the run, never on the number of tokens or runs.
All runs are drawn into one tensor, which keeps the number of operations small. A GPU gets the same numbers: their bits
are drawn on the host and processed on the device.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from math import prod
from typing import NamedTuple

import torch

_MASK = (1 << 64) - 1
_BITS = 16
_PER_WORD = 64 // _BITS
_AT_ONCE = 1 << 18
"""Number of table look-ups at once: their indices take twice as much memory."""

HOST = torch.device("cpu")

_generator = torch.Generator()


class TokenRun(NamedTuple):
    """A number of consecutive tokens from one stream."""

    stream: int
    tokens: int


class Chance:
    """Random numbers for the tokens of consecutive `runs` on `device`; repeated calls give the same numbers."""

    def __init__(self, runs: Sequence[TokenRun], seed: int, device: torch.device = HOST) -> None:
        self._runs, self._seed, self.device = runs, seed, device
        self._lengths = [run.tokens for run in runs]
        self.tokens = sum(self._lengths)

    @cached_property
    def position(self) -> torch.Tensor:
        """Each token's index in its run: int32 [tokens]."""
        positions = torch.arange(max(self._lengths, default=0), dtype=torch.int32, device=self.device)
        return torch.cat([positions[:tokens] for tokens in self._lengths]) if self._runs else positions

    def normal(self, *shape: int) -> torch.Tensor:
        """Draw standard normal numbers, float32 [tokens, *shape]: one of 65,536 quantiles each."""
        bits = self._bits(prod(shape)).reshape(-1)
        result = torch.empty(bits.shape, device=self.device)
        for piece, own in zip(bits.split(_AT_ONCE), result.split(_AT_ONCE), strict=True):
            torch.index_select(_quantiles(self.device), 0, _unsigned(piece), out=own)
        return result.view(self.tokens, *shape)

    def sign(self, *shape: int) -> torch.Tensor:
        """Draw +1 or -1, float32 [tokens, *shape]."""
        return self._bits(prod(shape)).bitwise_and(2).sub_(1).to(torch.float32).view(self.tokens, *shape)

    def share(self, *shape: int) -> torch.Tensor:
        """Draw multiples of 2^-16 from 0 to below 1, float32 [tokens, *shape]."""
        return _unsigned(self._bits(prod(shape))).to(torch.float32).mul_(2.0**-_BITS).view(self.tokens, *shape)

    def of_runs(self) -> "Chance":
        """Return random numbers for one token per run; see `spread`."""
        return Chance([run._replace(tokens=1) for run in self._runs], self._seed, self.device)

    def spread(self, of_runs: torch.Tensor) -> torch.Tensor:
        """Expand [runs, ...] to [tokens, ...]: each token gets its run's element."""
        lengths = torch.tensor(self._lengths, device=self.device)
        return of_runs.repeat_interleave(lengths, dim=0, output_size=self.tokens)

    def _bits(self, count: int) -> torch.Tensor:
        """Draw int16 [tokens, count]. Each token takes whole words, so that neighbours share none."""
        words = torch.empty(self.tokens, -(-count // _PER_WORD), dtype=torch.int64, device=self.device)
        for run, own in zip(self._runs, words.split_with_sizes(self._lengths), strict=True):
            if run.tokens:
                # An asynchronous copy to a GPU needs page-locked memory.
                drawn = own if own.is_cpu else torch.empty(own.shape, dtype=own.dtype, pin_memory=own.is_cuda)
                drawn.random_(-1 << 63, None, generator=_generator.manual_seed(mixed(self._seed, run.stream)))
                if drawn is not own:
                    own.copy_(drawn, non_blocking=True)
        return words.view(torch.int16)[:, :count]


def mixed(state: int, part: int) -> int:
    """Mix a seed with a number. Torch's CPU generator keeps the low 32 bits, which depend on all bits of both.

    The mixing step is splitmix64's (Steele, Lea and Flood, OOPSLA 2014).
    """
    state = (state ^ part) + 0x9E3779B97F4A7C15 & _MASK
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return state ^ state >> 31


@cache
def _quantiles(device: torch.device) -> torch.Tensor:
    """Compute quantiles of the standard normal distribution at the middles of 65,536 equal shares."""
    if device != HOST:
        # Computed on the device, they could differ in their last bits.
        return _quantiles(HOST).to(device)
    middles = torch.arange(0.5, 1 << _BITS, dtype=torch.float64) / (1 << _BITS)
    quantiles: torch.Tensor = torch.special.ndtri(middles)
    return quantiles.to(torch.float32)


def _unsigned(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int32).bitwise_and_((1 << _BITS) - 1)
