"""The limits of a server that schedules the requests of a case itself."""

from collections.abc import Sequence
from typing import Final

from hypothesis.strategies import DrawFn

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Pages, Serving, Step
from attnfuzz.reference.geometry import Geometry
from attnfuzz.strategies.choices import Choice, integer
from attnfuzz.strategies.coverage.classes import LIMITS
from attnfuzz.strategies.lean import Lean

_QUARTERS: Final = 4

# Forwards that all tokens of a case take.
_FORWARDS = Choice((1, 1, 1, 1, 2, 3, 5), lambda count: (f"token budget={LIMITS.of(count - 1)}",))
# Quarters of the pages that more than one slot needs.
_LACKING = Choice((0, 0, 0, 1, 2, 3, 4, 4), lambda quarters: (f"lacking pages={LIMITS.of(quarters)}",))
_SEEDS = integer(0, 255)


def draw_serving(
    draw: DrawFn, can: Capability, geometry: Geometry, steps: Sequence[Step], pages: Pages, lean: Lean
) -> Serving:
    """Draw limits: those that any batch fits in, or a budget that cuts prompts, or a pool that has too few pages."""
    if not can.schedules:
        return Serving()
    lengths: dict[int, int] = {}
    for step in steps:
        for request in step.requests:
            lengths[request.slot] = max(lengths.get(request.slot, 0), request.kv_len)
    forwards, quarters = draw(_FORWARDS.under(lean)), draw(_LACKING.under(lean))
    counts = [-(-length // geometry.page_size) for length in lengths.values()]
    beyond = sum(counts) - max(counts, default=0) + pages.spare
    return Serving(
        budget=max(1, -(-sum(lengths.values()) // forwards)) if forwards > 1 else 0,
        shortage=max(1, beyond * quarters // _QUARTERS) if quarters else 0,
        seed=draw(_SEEDS),
    )
