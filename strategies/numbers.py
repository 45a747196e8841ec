"""What the tensors of a case hold: the family of values, and the scale factors."""

from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Scales, ValueFamily
from attnfuzz.strategies.choices import choice

_FAMILIES: SearchStrategy[ValueFamily] = choice((ValueFamily.NORMAL, *ValueFamily))
# Above and below 1, exact in every dtype and not, and never each other's inverse: a scale that is applied twice,
# or divided by, shows.
_FACTORS = choice((1.0, 1.0, 1.0, 0.5, 1.7, 0.37))


def draw_family(draw: DrawFn) -> ValueFamily:
    """What q, K and V hold; normal numbers more often than the others."""
    return draw(_FAMILIES)


def draw_scales(draw: DrawFn, can: Capability) -> Scales:
    """A softmax scale, and those of K and V where `can` has them."""
    softmax = draw(_FACTORS)
    return Scales(softmax=softmax, k=draw(_FACTORS), v=draw(_FACTORS)) if can.kv_scales else Scales(softmax=softmax)
