"""The numbers that rotary embedding may give: bounds that follow from its operations.

The right result is computed in fp64. A pair (x, y) becomes (x c - y s, y c + x s) for the cosine c and the sine s of
its angle. Kernels compute that in fp32: FlashInfer (include/flashinfer/pos_enc.cuh, vec_apply_llama_rope_cos_sin), vLLM
(csrc/pos_encoding_kernels.cu, apply_token_rotary_embedding). Two products and a sum are off by at most

    2^-24 (|x c| + |y s| + |x c - y s|)

with or without fused multiplication (Higham, Accuracy and Stability, section 3.1), to first order in 2^-24. An fp32
number below 2^-126 is off by up to 2^-150 more in each operation, or is flushed to zero. The sum is then rounded once
to its dtype, to nearest.

Where c and s come from decides the rest. They are exact if they are read from a table. A kernel that computes the angle
itself, as position * theta^(-2 i / dim) in fp32, rounds the frequency and the product: a relative error of 2^-23 of the
angle if the power is rounded to nearest. An error of the angle is one of c and s of at most that size; `cos_sin` is the
error of the functions themselves.
"""

from dataclasses import dataclass
from typing import Final

import torch

from attnfuzz.reference.rope import Pairing, Rope

Interval = tuple[torch.Tensor, torch.Tensor]
"""The smallest and the largest number, elementwise, in fp64."""

_UNIT: Final = 2.0**-24 * (1 + 2.0**-20)
"""Unit roundoff of fp32; the rest is for products of errors, and for the error of fp64."""

_LARGEST: Final = torch.finfo(torch.float32).max

GRADUAL: Final = 2.0**-149
"""Absolute error of three operations with gradual underflow."""

FLUSHED: Final = 2.0**-124
"""Absolute error where numbers below 2^-126 are taken for zero: two operands and two products, as with -ftz=true."""


@dataclass(frozen=True)
class Rotation:
    """How a writer rotates, and which errors it makes beyond those of fp32.

    Cosines and sines are read from the table of fp32 numbers. With `rounds_table`, they are rounded to the dtype of the
    tokens first, as vLLM's layers do (RotaryEmbedding._match_cos_sin_cache_dtype). A kernel that computes them has an
    error of the `angle`, relative to it, and of the functions, `cos_sin`; for libm's on an angle in fp32, 2^-23 and
    2^-24. With `rounds_result`, the result is rounded to the dtype of the tokens before it is converted to fp8, as by
    two kernels in turn. `underflow` is the absolute error of numbers that fp32 can't hold.
    """

    angle: float = 0.0
    cos_sin: float = 0.0
    rounds_table: bool = False
    rounds_result: bool = False
    underflow: float = GRADUAL

    @property
    def computed(self) -> bool:
        """Whether the kernel computes cosines and sines."""
        return bool(self.angle or self.cos_sin)

    def interval(self, values: torch.Tensor, positions: torch.Tensor, rope: Rope, part: slice, dim: int) -> Interval:
        """Bound the numbers that tokens [n, heads, width] at `positions` [n] may become: those in `part` are rotated.

        `part` has `dim` elements. The others stay.
        """
        low, high = values.double(), values.double()
        rotated = self._rotated(values[..., part], positions, rope, dim)
        for whole, bound in zip((low, high), rotated, strict=True):
            whole[..., part] = bound
        return self._stored(low, values.dtype), self._stored(high, values.dtype)

    def _stored(self, numbers: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Round a bound to the tokens' dtype, if the kernel does."""
        return numbers.float().to(dtype).double() if self.rounds_result else numbers

    def _rotated(self, values: torch.Tensor, positions: torch.Tensor, rope: Rope, dim: int) -> Interval:
        angle = angles(rope, positions, dim)
        cos, sin = _cos_sin(rope, angle)
        if not self.computed:
            dtype = values.dtype if self.rounds_table else torch.float32
            cos, sin = (each.float().to(dtype).double() for each in (cos, sin))
        error = (angle.abs() * self.angle).clamp(max=2.0) + self.cos_sin
        x, y = _pairs(values.double(), rope.pairing)
        cos, sin, error = (each.unsqueeze(1) for each in (cos, sin, error))
        bounds = [self._bounds(*each, error) for each in ((x * cos, -y * sin, x, y), (y * cos, x * sin, x, y))]
        (first_low, first_high), (second_low, second_high) = bounds
        return _unpaired(first_low, second_low, rope.pairing), _unpaired(first_high, second_high, rope.pairing)

    def _bounds(
        self, one: torch.Tensor, other: torch.Tensor, x: torch.Tensor, y: torch.Tensor, error: torch.Tensor
    ) -> Interval:
        """Bound the sum of two products, with an `error` of the factors of `x` and `y`."""
        due = one + other
        slack = _UNIT * (one.abs() + other.abs() + due.abs()) + error * (x.abs() + y.abs()) + self.underflow
        finite = x.isfinite() & y.isfinite()
        # A factor above 1 lets a product overflow, whose sum need not: infinities, or NaN.
        overflows = _overflows(one) | _overflows(other)
        if not self.computed:
            # Infinity less its slack would be NaN.
            low, high = torch.where(finite, due - slack, due), torch.where(finite, due + slack, due)
            return low.masked_fill(overflows, -torch.inf), high.masked_fill(overflows, torch.nan)
        # The sign of a factor near zero is open, so that infinities may become either, or NaN.
        return torch.where(finite, due - slack, -torch.inf), torch.where(finite, due + slack, torch.nan)


def _overflows(product: torch.Tensor) -> torch.Tensor:
    return product.isfinite() & (product.abs() > _LARGEST)


def angles(rope: Rope, positions: torch.Tensor, dim: int) -> torch.Tensor:
    """Compute the angle of each pair at each position [n, dim / 2], in fp64."""
    return positions.double().unsqueeze(1) * torch.tensor(rope.frequencies(dim), dtype=torch.float64)


def _cos_sin(rope: Rope, angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    magnitude = rope.scaling.magnitude
    return magnitude * angle.cos(), magnitude * angle.sin()


def cos_sin_table(rope: Rope, rows: int, dim: int) -> torch.Tensor:
    """Compute cosines, then sines, of the positions below `rows` [rows, dim] in fp32, as vLLM and SGLang do."""
    return torch.cat(_cos_sin(rope, angles(rope, torch.arange(rows), dim)), dim=-1).float()


def _pairs(values: torch.Tensor, pairing: Pairing) -> tuple[torch.Tensor, torch.Tensor]:
    if pairing is Pairing.HALVES:
        first, second = values.chunk(2, dim=-1)
        return first, second
    return values[..., 0::2], values[..., 1::2]


def _unpaired(first: torch.Tensor, second: torch.Tensor, pairing: Pairing) -> torch.Tensor:
    if pairing is Pairing.HALVES:
        return torch.cat((first, second), dim=-1)
    return torch.stack((first, second), dim=-1).flatten(-2)
