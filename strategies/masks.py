"""Drawing the mask of a case."""

from functools import cache

from hypothesis.strategies import DrawFn

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mask, Mode, Step
from attnfuzz.reference.geometry import Geometry
from attnfuzz.strategies.choices import Choice, on
from attnfuzz.strategies.lean import Lean

_TIMES_CAUSAL = 3
# Few cases have a step that verifies drafts.
_TIMES_TREE = 4


def draw_mask(draw: DrawFn, can: Capability, geometry: Geometry, steps: tuple[Step, ...], lean: Lean) -> Mask:
    """Draw a mask that the backend supports. Trees are only drawn for cases with a verify step."""
    trees = any(step.mode is Mode.TARGET_VERIFY for step in steps)
    windowed = geometry.window_left >= 0
    options = tuple(
        mask for mask in can.masks if (trees or mask is not Mask.TREE) and (not windowed or mask in can.windowed_masks)
    )
    return draw(_mask(options).under(lean)) if len(options) > 1 else Mask.CAUSAL


@cache
def _mask(options: tuple[Mask, ...]) -> Choice[Mask]:
    times = {Mask.CAUSAL: _TIMES_CAUSAL, Mask.TREE: _TIMES_TREE}
    # Hypothesis shrinks to the first option.
    ordered = (mask for mask in Mask if mask in options)
    return Choice(tuple(mask for mask in ordered for _ in range(times.get(mask, 1))), on("mask"))
