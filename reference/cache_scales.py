"""Drawing and applying the scales of quantised KV caches that are finer than one per tensor.

Attention uses the stored number times its scale. Scales are drawn independently of the values, which are then divided
by them. So values keep the distribution of their family, and no two heads or tokens have the same scale.
"""

from collections.abc import Sequence

import torch

from attnfuzz.reference import nvfp4
from attnfuzz.reference.case import Granularity, ValueFamily
from attnfuzz.reference.chance import HOST, Chance, TokenRun, mixed
from attnfuzz.reference.problem import exact
from attnfuzz.reference.values import Operand

_SALT = {Operand.KEY: 0x6B, Operand.VALUE: 0x76}

_OCTAVES = 7
"""Scales are from 2^-3 to below 2^4."""

_ROUNDED = frozenset(
    {ValueFamily.NORMAL, ValueFamily.PEAKED, ValueFamily.LARGE_LOGITS, ValueFamily.EXTREME, ValueFamily.UNEVEN}
)
"""Families whose values may be rounded. Scales of all others are powers of two, so that products are exact."""

_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def draw_scales(
    family: ValueFamily,
    role: Operand,
    granularity: Granularity,
    runs: Sequence[TokenRun],
    heads: int,
    *,
    seed: int,
    device: torch.device = HOST,
) -> torch.Tensor:
    """Draw the scales of keys or values: float32 [tokens, heads, 1], with equal rows for one scale per head.

    Raises ValueError for TENSOR, whose scale is a number of the case, and BLOCK, whose scales follow from their values.
    """
    if granularity not in (Granularity.HEAD, Granularity.TOKEN_HEAD):
        raise ValueError(f"scales of a {granularity.words} are not drawn")
    state = mixed(_SALT[role], seed)
    if granularity is Granularity.HEAD:
        scales = _drawn(family, Chance([TokenRun(0, 1)], state, device), heads)
        return scales.expand(sum(run.tokens for run in runs), heads).unsqueeze(-1)
    return _drawn(family, Chance(runs, state, device), heads).unsqueeze(-1)


def _drawn(family: ValueFamily, chance: Chance, heads: int) -> torch.Tensor:
    octave, mantissa = chance.share(2 * heads).chunk(2, dim=-1)
    exponent = (octave * _OCTAVES).floor() - _OCTAVES // 2
    return exponent.exp2() * (1 + mantissa if family in _ROUNDED else torch.ones_like(mantissa))


def quantised(values: torch.Tensor, scales: float | torch.Tensor) -> torch.Tensor:
    """Return `values` over `scales`, rounded to e4m3 and saturated."""
    return (values / scales).clamp_(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)


def dequantised(stored: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return the values of stored numbers, rounded to float32, as a kernel may do (`NoiseModel.operands`).

    Bytes are taken as NVFP4, with scales of blocks.
    """
    if stored.dtype == torch.uint8:
        return nvfp4.dequantised(stored, scales)
    return (exact(stored) * scales.to(torch.float64)).to(torch.float32)
