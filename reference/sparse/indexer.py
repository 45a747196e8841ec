"""The indexer of DeepSeek Sparse Attention: quantised keys, their cache, and the scores that queries give them.

A page of the cache has the keys of its slots, `dim` bytes of e4m3 each, and then their scales in float32, one for each
slot (DeepGEMM's fp8_paged_mqa_logits; vLLM's indexer_k_quant_and_cache, csrc/cache_kernels.cu).
"""

from dataclasses import dataclass
from functools import cached_property
from math import log, sqrt
from typing import NamedTuple

import torch

from attnfuzz.reference.noise import NoiseModel

LARGEST = 448.0
SMALLEST_MAGNITUDE = 1e-4
"""Lower bound of a key's largest magnitude in its scale."""

_NEAR = 2.0**-21
"""Relative error of a scale, and of a number divided by it, before it is rounded: a few roundings of float32."""


class Quantised(NamedTuple):
    """Keys in e4m3 [n, dim], and their scales in float32 [n]."""

    keys: torch.Tensor
    scales: torch.Tensor


class Interval(NamedTuple):
    """The smallest and the largest right numbers, elementwise."""

    low: torch.Tensor
    high: torch.Tensor


def scale_bounds(keys: torch.Tensor, *, powers: bool) -> Interval:
    """Return bounds [n] of the scales of keys [n, dim]: the largest magnitude / 448, or the power of two above."""
    exact = keys.double().abs().amax(-1).clamp_min(SMALLEST_MAGNITUDE) / LARGEST
    low, high = exact * (1 - _NEAR), exact * (1 + _NEAR)
    return (
        Interval(power_above(low).float(), power_above(high).float()) if powers else Interval(low.float(), high.float())
    )


def power_above(values: torch.Tensor) -> torch.Tensor:
    """Return the smallest powers of two that are at least `values`."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp(torch.ones_like(values), exponent - (mantissa == 0.5).int())


def key_bounds(keys: torch.Tensor, scales: torch.Tensor) -> Interval:
    """Return bounds [n, dim] in e4m3 of keys divided by their scales [n]: rounded to nearest, saturated at 448."""
    exact = keys.double() / scales.double().unsqueeze(-1)
    ends = [rounded(exact * (1 + off)) for off in (-_NEAR, _NEAR)]
    below = ends[0].float() <= ends[1].float()
    bits = [each.view(torch.uint8) for each in ends]
    low, high = torch.where(below, bits[0], bits[1]), torch.where(below, bits[1], bits[0])
    return Interval(low.view(torch.float8_e4m3fn), high.view(torch.float8_e4m3fn))


def rounded(values: torch.Tensor) -> torch.Tensor:
    """Round to e4m3, to nearest, saturated at 448."""
    return values.clamp(-LARGEST, LARGEST).float().to(torch.float8_e4m3fn)


def quantise(keys: torch.Tensor, *, powers: bool) -> Quantised:
    """Quantise keys [n, dim]."""
    scales = scale_bounds(keys, powers=powers).high
    return Quantised(rounded(keys.double() / scales.double().unsqueeze(-1)), scales)


def key_view(cache: torch.Tensor, page_size: int) -> torch.Tensor:
    """View the keys of a cache uint8 [pages, page bytes] as uint8 [pages, page_size, 1, dim]."""
    dim = cache.shape[1] // page_size - 4
    keys: torch.Tensor = cache[:, : page_size * dim].unflatten(1, (page_size, 1, dim))
    return keys


def scale_view(cache: torch.Tensor, page_size: int) -> torch.Tensor:
    """View the scales of a cache uint8 [pages, page bytes] as int32 bits [pages, page_size, 1, 1]."""
    dim = cache.shape[1] // page_size - 4
    scales: torch.Tensor = cache[:, page_size * dim :].view(torch.int32).unflatten(1, (page_size, 1, 1))
    return scales


@dataclass(frozen=True)
class Scoring:
    """The scores of one step: row r sees `lengths[r]` of its request's keys from column `starts[r]` on.

    queries e4m3 [rows, heads, dim], weights float32 [rows, heads]; keys e4m3 [n, dim] of all requests, with scales [n],
    of which those of row r begin at `firsts[r]`. Other columns of [rows, width] hold `outside`: -inf, or None if an API
    leaves them undefined.
    """

    queries: torch.Tensor
    weights: torch.Tensor
    keys: torch.Tensor
    scales: torch.Tensor
    firsts: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    width: int
    outside: float | None = -torch.inf

    @cached_property
    def right(self) -> torch.Tensor:
        """The scores in fp64 [rows, width], -inf outside."""
        return self._answer[0]

    def bounds(self, noise: NoiseModel, alpha: float) -> Interval:
        """Return float32 bounds [rows, width] that a right kernel passes with probability `alpha` at most.

        The error of a sum of n products is below t sqrt(n) u times the sum of their magnitudes (Ipsen and Zhou,
        arXiv:1906.10465, theorem 4.8), with the roundoffs u of `noise`: `logits` within a head, and `accumulate` over
        heads. A head counts if its product may be above 0.
        """
        right, sizes, sums, visible = self._answer
        count = max(int(visible.sum()), 1)
        heads, dim = self.queries.shape[1:]
        t = sqrt(2 * log(2 * count * (heads + 1) / alpha))
        error = t * sqrt(dim) * noise.logits * sizes + (t * sqrt(heads) * noise.accumulate + 2.0**-22) * sums
        error += 2.0**-126
        low, high = (torch.where(visible, end, right).float() for end in (right - error, right + error))
        low = torch.where(visible, torch.nextafter(low, torch.full_like(low, -torch.inf)), low)
        high = torch.where(visible, torch.nextafter(high, torch.full_like(high, torch.inf)), high)
        if self.outside is None:
            low = torch.where(visible, low, torch.nan)
            high = torch.where(visible, high, torch.inf)
        return Interval(low, high)

    @cached_property
    def _answer(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """The scores, the sums of magnitudes of products and over heads, and which columns are visible."""
        rows = len(self.starts)
        right = torch.full((rows, self.width), -torch.inf, dtype=torch.float64)
        sizes, sums = torch.zeros_like(right), torch.zeros_like(right)
        visible = torch.zeros(right.shape, dtype=torch.bool)
        keys = self.keys.double() * self.scales.double().unsqueeze(-1)
        queries, weights = self.queries.double(), self.weights.double()
        for row, (first, start, length) in enumerate(zip(self.firsts, self.starts, self.lengths, strict=True)):
            seen = keys[first : first + length].T
            columns = slice(start, start + length)
            products = queries[row] @ seen
            weighted = weights[row].unsqueeze(-1) * products.clamp_min(0)
            right[row, columns] = weighted.sum(0)
            # A head whose product is far below 0 can't count by an error of its sum.
            magnitudes = queries[row].abs() @ seen.abs()
            live = products > -(2.0**-10) * magnitudes
            sizes[row, columns] = (weights[row].abs().unsqueeze(-1) * magnitudes * live).sum(0)
            sums[row, columns] = weighted.abs().sum(0)
            visible[row, columns] = True
        return right, sizes, sums, visible
