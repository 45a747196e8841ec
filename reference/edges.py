"""Factors at the edges of their range: 0, and below 0. The right answer follows from the formula, as for any other.

A softmax scale of 0 makes all visible keys count alike, and one below 0 turns their order around. An infinite one has
no right answer: the difference of two infinite logits is no number.
"""

from enum import StrEnum

import msgspec

from attnfuzz.reference.arguments import ArgumentStanding, check_source
from attnfuzz.reference.case import Scales


class ScaleEdge(StrEnum):
    """A factor that is 0 or below."""

    SOFTMAX_ZERO = "a softmax scale of 0"
    SOFTMAX_NEGATIVE = "a softmax scale below 0"
    K_ZERO = "a K scale of 0"
    K_NEGATIVE = "a K scale below 0"
    V_ZERO = "a V scale of 0"
    V_NEGATIVE = "a V scale below 0"


class EdgeRule(msgspec.Struct, frozen=True):
    """The standing of an edge, as `ArgumentRule` has that of a form."""

    edge: ScaleEdge
    standing: ArgumentStanding = ArgumentStanding.UNSAID
    source: str = ""

    def __post_init__(self) -> None:
        check_source(self.edge, self.standing, self.source)


_ZEROS = (("softmax", ScaleEdge.SOFTMAX_ZERO), ("k", ScaleEdge.K_ZERO), ("v", ScaleEdge.V_ZERO))
_NEGATIVES = (("softmax", ScaleEdge.SOFTMAX_NEGATIVE), ("k", ScaleEdge.K_NEGATIVE), ("v", ScaleEdge.V_NEGATIVE))


def edges_of(scales: Scales) -> tuple[ScaleEdge, ...]:
    """The edges that these factors are at."""
    zeros = (edge for name, edge in _ZEROS if getattr(scales, name) == 0)
    return (*zeros, *(edge for name, edge in _NEGATIVES if getattr(scales, name) < 0))


def edge_of(name: str, factor: float) -> ScaleEdge | None:
    """The edge that the factor `name` of `Scales` is at."""
    return next(iter(edges_of(msgspec.structs.replace(Scales(), **{name: factor}))), None)
