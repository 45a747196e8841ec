"""Features of a writer of the KV cache: padded tokens, and keys that it rotates."""

import math
from typing import TYPE_CHECKING

from attnfuzz.reference.case import Case, PaddedSlot
from attnfuzz.reference.edits.removals import case_with, part_with
from attnfuzz.reference.features.classes import ROTARY_SHIFTS, ROTARY_THETAS
from attnfuzz.reference.features.row import Violation, but, classed, grouped, of_case, offers, removable, single
from attnfuzz.reference.rope import Pairing, Rope, RopeScaling, RotaryShare

if TYPE_CHECKING:
    from attnfuzz.reference.capability import Capability

PADDED_SLOTS = grouped(
    "padded slots",
    of_case(
        single("padded slot", PaddedSlot, lambda case: case.padded_slot),
        "padded_slot",
        removable("skipped padding", but(PaddedSlot.DUMMY), case_with(padded_slot=PaddedSlot.DUMMY)),
        **offers(
            lambda can: can.padded_slots,
            "the backend's padded tokens do not go there",
            lambda case: case.padded_slot,
            "padded slot {}",
        ),
    ),
    line="memory",
)


def rotary_shares(can: "Capability") -> tuple[RotaryShare, ...]:
    """Return the shares of a head that a writer rotates. Of a latent, the whole rotary part is rotated."""
    return tuple(share for share in can.rotary if share is RotaryShare.WHOLE or not can.latent)


def _refused_share(can: "Capability", case: Case) -> str | None:
    if case.rope is None:
        return "keys that are not rotated" if can.rotary else None
    if case.rope.share in can.rotary:
        return None
    return f"rotary embedding of the {case.rope.share} head" if can.rotary else "rotary embedding"


def _share_in_words(rope: Rope) -> str:
    return f"rope.share {rope.share}" if rope.share is not Rope().share else ""


def _refused_pairing(can: "Capability", case: Case) -> str | None:
    return None if case.rope is None or case.rope.pairing in can.pairings else f"rotary pairs of {case.rope.pairing}"


def _refused_scaling(can: "Capability", case: Case) -> str | None:
    refused = case.rope is not None and case.rope.scaling not in can.rope_scalings
    return f"rotary frequencies scaled as by {case.rope.scaling}" if case.rope and refused else None


MAX_SHIFT = 1 << 16
"""Maximum number of rows of a table of cosines before those of the keys."""


def _impossible_rope(case: Case) -> Violation | None:
    rope, geometry = case.rope, case.geometry
    if rope is None:
        return None
    if not 0 <= rope.shift <= MAX_SHIFT:
        return "rope.shift", rope.shift, f"must be at least 0 and at most {MAX_SHIFT}"
    if not (math.isfinite(rope.theta) and rope.theta >= 1):
        return "rope.theta", rope.theta, "must be finite, and at least 1"
    if rope.scaling is RopeScaling.YARN and rope.theta == 1:
        return "rope.theta", rope.theta, "must be larger than 1 with YaRN"
    if geometry.latent is not None and rope.share is not RotaryShare.WHOLE:
        return "rope.share", rope.share.value, "must be whole with latents: their rotary part is rotated"
    dim = geometry.latent.rope if geometry.latent else geometry.head_dim_qk
    if rope.dim(geometry) > dim or rope.dim(geometry) % 2:
        field = "latent.rope" if geometry.latent else "head_dim_qk"
        return f"geometry.{field}", dim, "must be at least 2 with rope, and even in a latent"
    return None


_ROTATES = "the backend rotates all keys, or none, and only so"

ROTATION = grouped(
    "rotation",
    of_case(
        single("rotary share", ("none", *RotaryShare), lambda case: case.rope.share if case.rope else "none"),
        "rope.share",
        removable("rotary share", but("none", RotaryShare.WHOLE), part_with("rope", share=RotaryShare.WHOLE)),
        supported=lambda can: rotary_shares(can) if can.rotary else ("none",),
        lack=_ROTATES,
        refusal=_refused_share,
        rule=_impossible_rope,
        # The default embedding has no field to name.
        printed=lambda case: "" if case.rope is None else "rope" if case.rope == Rope() else _share_in_words(case.rope),
    ),
    of_case(
        single("rotary pairing", ("none", *Pairing), lambda case: case.rope.pairing if case.rope else "none"),
        "rope.pairing",
        removable("rotary pairing", but("none", Pairing.HALVES), part_with("rope", pairing=Pairing.HALVES)),
        supported=lambda can: can.pairings if can.rotary else ("none",),
        lack=_ROTATES,
        refusal=_refused_pairing,
    ),
    of_case(
        classed("rotary theta", ROTARY_THETAS, lambda case: case.rope),
        "rope.theta",
        removable("rotary theta", but("none", "10000"), part_with("rope", theta=10000.0)),
        supported=lambda can: ROTARY_THETAS.names[1:] if can.rotary else ("none",),
        lack=_ROTATES,
    ),
    of_case(
        classed("rotary shift", ROTARY_SHIFTS, lambda case: case.rope),
        "rope.shift",
        removable("rotary shift", but("none"), part_with("rope", shift=0)),
        supported=lambda can: ROTARY_SHIFTS.names if can.rotary else ("none",),
        lack=_ROTATES,
    ),
    of_case(
        single("rotary scaling", RopeScaling, lambda case: case.rope.scaling if case.rope else RopeScaling.NONE),
        "rope.scaling",
        removable("rotary scaling", but(RopeScaling.NONE), part_with("rope", scaling=RopeScaling.NONE)),
        supported=lambda can: (RopeScaling.NONE, *can.rope_scalings) if can.rotary else ("none",),
        lack=_ROTATES,
        refusal=_refused_scaling,
    ),
    line="values",
)
