"""Rotary embedding (RoFormer, arXiv:2104.09864, section 3.4): rotating keys and queries by their position."""

import math
from enum import StrEnum

import msgspec

from attnfuzz.reference.geometry import Geometry


class RotaryShare(StrEnum):
    """The share of a head's elements, from the first on, that is rotated: an even number, at least two.

    Models rotate all of them, half (GLM-4), a quarter (GPT-NeoX), or two fifths (Phi-2). Of a latent, the whole rotary
    part is rotated: WHOLE.
    """

    WHOLE = "whole"
    HALF = "half"
    QUARTER = "quarter"
    TWO_FIFTHS = "two fifths"

    def of(self, head_dim: int) -> int:
        """Return the number of rotated elements."""
        parts, whole = _SHARES[self]
        return max(2, head_dim * parts // whole // 2 * 2)


_SHARES = {
    RotaryShare.WHOLE: (1, 1),
    RotaryShare.HALF: (1, 2),
    RotaryShare.QUARTER: (1, 4),
    RotaryShare.TWO_FIFTHS: (2, 5),
}


class Pairing(StrEnum):
    """The elements that are rotated together: i and i + dim / 2 (GPT-NeoX), or 2 i and 2 i + 1 (GPT-J)."""

    HALVES = "halves"
    NEIGHBOURS = "neighbours"


class RopeScaling(StrEnum):
    """The change of frequencies that extends a model's context beyond that of its training.

    LLAMA31 lowers those of long waves, as Llama 3.1 does (factor 8 beyond 8,192 positions). YARN lowers them by the
    number of turns, and scales cosines and sines by 0.1 ln(factor) + 1 (arXiv:2309.00071; Qwen2.5's factor 4 beyond
    32,768).
    """

    NONE = "none"
    LLAMA31 = "llama31"
    YARN = "yarn"

    @property
    def magnitude(self) -> float:
        """The factor of cosines and sines."""
        return 0.1 * math.log(_YARN_FACTOR) + 1 if self is RopeScaling.YARN else 1.0

    def of(self, frequency: float, pair: int, dim: int, theta: float) -> float:
        """Return the scaled frequency of a pair of `dim` elements. `frequency` is the unscaled one."""
        if self is RopeScaling.LLAMA31:
            turns = frequency * _LLAMA31_CONTEXT / (2 * math.pi)
            kept = (turns - _LLAMA31_LOW) / (_LLAMA31_HIGH - _LLAMA31_LOW)
            return _between(frequency / _LLAMA31_FACTOR, frequency, kept)
        if self is RopeScaling.YARN:
            low, high = _yarn_range(dim, theta)
            return _between(frequency, frequency / _YARN_FACTOR, (pair - low) / (high - low))
        return frequency


_LLAMA31_FACTOR, _LLAMA31_CONTEXT, _LLAMA31_LOW, _LLAMA31_HIGH = 8.0, 8192, 1.0, 4.0
_YARN_FACTOR, _YARN_CONTEXT, _YARN_FAST, _YARN_SLOW = 4.0, 32768, 32.0, 1.0


def _yarn_range(dim: int, theta: float) -> tuple[float, float]:
    """Return the pairs between which frequencies go from unchanged to divided (vLLM, yarn_find_correction_range)."""

    def pair(turns: float) -> float:
        return dim * math.log(_YARN_CONTEXT / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(_YARN_FAST)), 0), min(math.ceil(pair(_YARN_SLOW)), dim - 1)
    return low, high if high != low else high + 0.001


def _between(first: float, second: float, share: float) -> float:
    share = min(max(share, 0.0), 1.0)
    return (1 - share) * first + share * second


class Rope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rotary embedding of new tokens.

    The position of a token is its index p among its request's keys, plus `shift`: servers shift positions after images
    (Qwen2-VL). Pair i of `dim` elements is rotated by position * theta^(-2 i / dim), changed by `scaling`.
    """

    share: RotaryShare = RotaryShare.WHOLE
    pairing: Pairing = Pairing.HALVES
    theta: float = 10000.0
    shift: int = 0
    scaling: RopeScaling = RopeScaling.NONE

    def frequencies(self, dim: int) -> list[float]:
        """Return the angle by which each pair of `dim` elements turns from one position to the next, in radians."""
        plain = [self.theta ** (-2 * pair / dim) for pair in range(dim // 2)]
        return [self.scaling.of(each, pair, dim, self.theta) for pair, each in enumerate(plain)]

    def dim(self, geometry: Geometry) -> int:
        """Return the number of rotated elements of a head."""
        return geometry.latent.rope if geometry.latent else self.share.of(geometry.head_dim_qk)
