"""Magnitudes of q, K and V: powers of two, by which the numbers of a value family are multiplied.

Queries get the inverse of the keys' power, so logits do not change, and neither do the weights and the LSE. All values
of an element get the same power, and so does the element of the output, with its error in a correct kernel. Only
numbers that are too small for their dtype are rounded differently. A kernel that converts its operands to a dtype of a
smaller range loses them, or makes infinities.

Attention needs no product of numbers that leave the range of fp32, and no intermediate result that leaves the range of
the dtype: an output is at most as large as the largest value.
"""

from typing import NamedTuple

import torch

from attnfuzz.reference.case import Magnitude, Scales, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.values import Operand


class _Powers(NamedTuple):
    """Exponents of two: of all keys, and of the elements of values, in turn."""

    key: int
    value: tuple[int, ...]


_WIDE = {
    Magnitude.LARGE: _Powers(30, (30,)),
    Magnitude.TINY: _Powers(-30, (-30,)),
    Magnitude.MIXED: _Powers(0, (30, 0, -30, -126)),
}
"""Of fp32 and bf16. Keys are never subnormal, since the judge allows kernels to flush values only, as GPUs may do."""

_FP16 = {
    Magnitude.LARGE: _Powers(0, (7,)),
    Magnitude.TINY: _Powers(0, (-8,)),
    Magnitude.MIXED: _Powers(0, (7, 0, -8, -16)),
}
"""Of fp16. Numbers of up to 448 times 2^7 are below 65504. Kernels may round scaled queries and keys to fp16, which
leaves few bits of small ones, so these stay plain.
"""

_BY_DTYPE = {DType.FLOAT32: _WIDE, DType.BFLOAT16: _WIDE, DType.FLOAT16: _FP16}

OF_LATENTS = (Magnitude.PLAIN, Magnitude.LARGE, Magnitude.TINY)
"""Values are a part of the latent keys, and have their power."""

_TOO_WIDE = (ValueFamily.EXTREME, ValueFamily.UNEVEN)
"""Families for writers of the KV cache, which have numbers of all sizes."""


def magnitudes_of(geometry: Geometry, scales: Scales, family: ValueFamily) -> tuple[Magnitude, ...]:
    """Return the magnitudes that a case may have. Quantised caches have scales instead."""
    same = geometry.kv_dtype is geometry.dtype and geometry.dtype in _BY_DTYPE
    if not same or scales.k != 1 or scales.v != 1 or family in _TOO_WIDE:
        return (Magnitude.PLAIN,)
    return tuple(Magnitude) if geometry.latent is None else OF_LATENTS


def at_magnitude(values: torch.Tensor, magnitude: Magnitude, role: Operand, dtype: DType) -> torch.Tensor:
    """Multiply drawn values, float32 [tokens, heads, dim], by the powers of two for tensors of `dtype`, in place."""
    if magnitude is Magnitude.PLAIN:
        return values
    powers = _BY_DTYPE[dtype][magnitude]
    match role:
        case Operand.QUERY:
            return values.mul_(2.0**-powers.key)
        case Operand.KEY:
            return values.mul_(2.0**powers.key)
        case Operand.VALUE:
            dim = values.shape[-1]
            exponents = (powers.value * -(-dim // len(powers.value)))[:dim]
            return values.mul_(torch.tensor([2.0**exponent for exponent in exponents], device=values.device))
