"""Drawing rotary embeddings, for writers of the KV cache that rotate keys."""

from functools import cache

from hypothesis.strategies import DrawFn

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.rope import Pairing, Rope, RopeScaling, RotaryShare
from attnfuzz.strategies.choices import Choice, on
from attnfuzz.strategies.coverage.classes import ROTARY_SHIFTS, ROTARY_THETAS
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.supported import rotary_shares

# RoFormer's, Llama 3's and Qwen 2's.
_THETAS = Choice(
    (10000.0, 10000.0, 500000.0, 1e6), lambda theta: on("rotary theta", ROTARY_THETAS.of)(Rope(theta=theta))
)
_SHIFTS = Choice((0, 0, 0, 1, 100, 4000), lambda shift: on("rotary shift", ROTARY_SHIFTS.of)(Rope(shift=shift)))


def draw_rope(draw: DrawFn, can: Capability, lean: Lean) -> Rope | None:
    """Draw a rotary embedding that `can` supports, or None if it supports none."""
    if not can.rotary:
        return None
    return Rope(
        share=draw(_share(rotary_shares(can)).under(lean)),
        pairing=draw(_pairing(can.pairings).under(lean)),
        theta=draw(_THETAS.under(lean)),
        shift=draw(_SHIFTS.under(lean)),
        scaling=draw(_scaling(can.rope_scalings).under(lean)),
    )


@cache
def _share(shares: tuple[RotaryShare, ...]) -> Choice[RotaryShare]:
    return Choice(shares, on("rotary share"))


@cache
def _pairing(pairings: tuple[Pairing, ...]) -> Choice[Pairing]:
    return Choice(pairings, on("rotary pairing"))


@cache
def _scaling(scalings: tuple[RopeScaling, ...]) -> Choice[RopeScaling]:
    return Choice(scalings, on("rotary scaling"))
