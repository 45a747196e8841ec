"""What the tensors of a case hold: the family of values, and the scale factors."""

from hypothesis.strategies import DrawFn

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Scales, ValueFamily
from attnfuzz.strategies.choices import Choice, on
from attnfuzz.strategies.coverage.classes import factor_class
from attnfuzz.strategies.lean import Lean

_FAMILIES: Choice[ValueFamily] = Choice((ValueFamily.NORMAL, *ValueFamily), on("values"))
# Above and below 1, exact in every dtype and not, and never each other's inverse: a scale that is applied twice,
# or divided by, shows.
_FACTORS = (1.0, 1.0, 1.0, 0.5, 1.7, 0.37)
_SOFTMAX, _K, _V = (Choice(_FACTORS, on(axis, factor_class)) for axis in ("softmax scale", "K scale", "V scale"))


def draw_family(draw: DrawFn, lean: Lean) -> ValueFamily:
    """What q, K and V hold; normal numbers more often than the others."""
    return draw(_FAMILIES.under(lean))


def draw_scales(draw: DrawFn, can: Capability, lean: Lean) -> Scales:
    """A softmax scale, and those of K and V where `can` has them."""
    softmax = draw(_SOFTMAX.under(lean))
    if not can.kv_scales:
        return Scales(softmax=softmax)
    return Scales(softmax=softmax, k=draw(_K.under(lean)), v=draw(_V.under(lean)))
