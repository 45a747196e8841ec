"""The compressor of DeepSeek-V4: several tokens become one key of the indexer.

Each token leaves a row of state: values, and scores to which an embedding of its place in a group of `ratio` is added.
The last token of a group pools a window of rows, by a softmax over the window for each channel, then normalises the
result by its root mean square, rotates its second half, and quantises it. A ratio of 4 has windows of two groups, of
which the first uses the first half of a row's channels, and the second the second half (vLLM,
csrc/cpu/sgl-kernels/compressor.cpp, and common/ops/fused_compress_quant_cache.py).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch

from attnfuzz.reference.sparse.indexer import LARGEST, SMALLEST_MAGNITUDE, Interval, power_above, rounded

OVERLAPPING: Final = 4
"""The ratio whose windows overlap."""

EPSILON: Final = 1e-6
_THETA: Final = 10000.0

_NEAR: Final = 2.0**-18
"""Error of a pooled and normalised element, relative to the sum of its magnitudes: exponentials, sums and a root, of a
few roundings of float32 each.
"""


def window_of(ratio: int) -> int:
    """Return the number of tokens that are pooled into one key."""
    return ratio * parts_of(ratio)


def parts_of(ratio: int) -> int:
    """Return the number of groups in a window, which is that of the parts of a row's channels."""
    return 2 if ratio == OVERLAPPING else 1


def cos_sin_table(rows: int, dim: int) -> torch.Tensor:
    """Return cosines, then sines, of the pairs of the rotated half of a key, float32 [rows, dim / 2]."""
    rotated = dim // 2
    frequencies = _THETA ** -(torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    angles = torch.arange(rows, dtype=torch.float64)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=1).float()


@dataclass(frozen=True)
class Pooling:
    """The keys that end in a step.

    `values` and `scores` are fp32 [keys, window, parts * dim], NaN where a window begins before its request.
    `positions` [keys] are those of the last tokens; `weight` [dim] scales the normalised elements.
    """

    values: torch.Tensor
    scores: torch.Tensor
    positions: torch.Tensor
    weight: torch.Tensor
    table: torch.Tensor
    ratio: int

    @cached_property
    def bounds(self) -> Interval:
        """Bounds of the keys in bfloat16, [keys, dim]."""
        dim = self.weight.shape[0]
        own = [self._own_part(each.double(), dim) for each in (self.values, self.scores)]
        absent = own[1].isnan()
        shares = own[1].masked_fill(absent, -torch.inf).softmax(1)
        values = own[0].masked_fill(absent, 0)
        pooled, magnitude = (shares * values).sum(1), (shares * values.abs()).sum(1)
        scale = (pooled.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * self.weight.double()
        error = _NEAR * (magnitude * scale.abs() + (pooled * scale).abs())
        keys, error = self._rotated(pooled * scale, error)
        return Interval((keys - error).to(torch.bfloat16), (keys + error).to(torch.bfloat16))

    def _own_part(self, rows: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the channels [keys, window, dim] that each row of a window uses."""
        if parts_of(self.ratio) == 1:
            return rows
        return torch.cat((rows[:, : self.ratio, :dim], rows[:, self.ratio :, dim:]), dim=1)

    def _rotated(self, keys: torch.Tensor, error: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = keys.shape[1] // 2
        turned = self.table[self.positions // self.ratio * self.ratio].double()
        cos, sin = turned[:, : half // 2], turned[:, half // 2 :]
        even, odd = keys[:, half::2], keys[:, half + 1 :: 2]
        pairs = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=2).flatten(1)
        errors = error[:, half::2] + error[:, half + 1 :: 2]
        errors = torch.stack((errors, errors), dim=2).flatten(1)
        return torch.cat((keys[:, :half], pairs), dim=1), torch.cat((error[:, :half], errors), dim=1)

    @cached_property
    def scales(self) -> Interval:
        """Bounds of the keys' scales, float32 [keys]: powers of two."""
        low, high = (each.double() for each in self.bounds)
        least = torch.where((low < 0) & (high > 0), 0, torch.minimum(low.abs(), high.abs())).amax(-1)
        most = torch.maximum(low.abs(), high.abs()).amax(-1)
        ends = (end.clamp_min(SMALLEST_MAGNITUDE) / LARGEST for end in (least, most))
        near = (end * (1 + off) for end, off in zip(ends, (-(2.0**-21), 2.0**-21), strict=True))
        return Interval(*(power_above(end).float() for end in near))

    def numbers(self, scales: torch.Tensor) -> Interval:
        """Return bounds of the numbers in e4m3 [keys, dim] for these scales [keys]."""
        return Interval(*(rounded(end.double() / scales.double()[:, None]) for end in self.bounds))
