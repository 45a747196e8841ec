"""Features of a writer of the KV cache: padded tokens, and keys that it rotates."""

from attnfuzz.reference.case import PaddedSlot
from attnfuzz.reference.edits.removals import case_with, part_with
from attnfuzz.reference.features.classes import ROTARY_SHIFTS, ROTARY_THETAS
from attnfuzz.reference.features.row import but, classed, grouped, of_case, removable, single
from attnfuzz.reference.rope import Pairing, RopeScaling, RotaryShare

PADDED_SLOTS = grouped(
    "padded slots",
    of_case(
        single("padded slot", PaddedSlot, lambda case: case.padded_slot),
        "padded_slot",
        removable("skipped padding", but(PaddedSlot.DUMMY), case_with(padded_slot=PaddedSlot.DUMMY)),
    ),
)

ROTATION = grouped(
    "rotation",
    of_case(
        single("rotary share", ("none", *RotaryShare), lambda case: case.rope.share if case.rope else "none"),
        "rope.share",
        removable("rotary share", but("none", RotaryShare.WHOLE), part_with("rope", share=RotaryShare.WHOLE)),
    ),
    of_case(
        single("rotary pairing", ("none", *Pairing), lambda case: case.rope.pairing if case.rope else "none"),
        "rope.pairing",
        removable("rotary pairing", but("none", Pairing.HALVES), part_with("rope", pairing=Pairing.HALVES)),
    ),
    of_case(
        classed("rotary theta", ROTARY_THETAS, lambda case: case.rope),
        "rope.theta",
        removable("rotary theta", but("none", "10000"), part_with("rope", theta=10000.0)),
    ),
    of_case(
        classed("rotary shift", ROTARY_SHIFTS, lambda case: case.rope),
        "rope.shift",
        removable("rotary shift", but("none"), part_with("rope", shift=0)),
    ),
    of_case(
        single("rotary scaling", RopeScaling, lambda case: case.rope.scaling if case.rope else RopeScaling.NONE),
        "rope.scaling",
        removable("rotary scaling", but(RopeScaling.NONE), part_with("rope", scaling=RopeScaling.NONE)),
    ),
)
