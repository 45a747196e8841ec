"""Rotary embedding (RoFormer, arXiv:2104.09864, section 3.4): the turn of keys and queries by their position."""

from enum import StrEnum

import msgspec

from attnfuzz.reference.geometry import Geometry


class RotaryShare(StrEnum):
    """The share of a head's elements, from the first on, that is rotated: an even number, at least two.

    Models rotate all of them, half (GLM-4), a quarter (GPT-NeoX), or two fifths (Phi-2). Of a latent, the rotary part
    is rotated, and no other: WHOLE.
    """

    WHOLE = "whole"
    HALF = "half"
    QUARTER = "quarter"
    TWO_FIFTHS = "two fifths"

    def of(self, head_dim: int) -> int:
        """The number of rotated elements."""
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


class Rope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The rotary embedding of new tokens.

    A token at place p among its request's keys has the position p + `shift`: servers shift positions behind images
    (Qwen2-VL). Pair i of `dim` elements is turned by position * theta^(-2 i / dim).
    """

    share: RotaryShare = RotaryShare.WHOLE
    pairing: Pairing = Pairing.HALVES
    theta: float = 10000.0
    shift: int = 0

    def dim(self, geometry: Geometry) -> int:
        """The number of rotated elements of a head."""
        return geometry.latent.rope if geometry.latent else self.share.of(geometry.head_dim_qk)
