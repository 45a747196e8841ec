"""Edges: factors of 0 and below, and batches without requests.

The correct output follows from the formula, as for any other factor. A softmax scale of 0 gives all visible keys equal
weight, and a negative one reverses their order. An infinite one has no correct output: the difference of two infinite
logits is undefined. A batch without requests has no output, but may have rows of padding.
"""

from enum import StrEnum

import msgspec

from attnfuzz.reference.arguments import ArgumentStanding, check_source
from attnfuzz.reference.case import Case, Scales


class Edge(StrEnum):
    """A factor of 0 or below, or a step without requests, which a rank may run because others have some."""

    SOFTMAX_ZERO = "a softmax scale of 0"
    SOFTMAX_NEGATIVE = "a softmax scale below 0"
    K_ZERO = "a K scale of 0"
    K_NEGATIVE = "a K scale below 0"
    V_ZERO = "a V scale of 0"
    V_NEGATIVE = "a V scale below 0"
    IDLE = "a step without requests"


class EdgeRule(msgspec.Struct, frozen=True):
    """The standing of an edge, like that of a form in `ArgumentRule`."""

    edge: Edge
    standing: ArgumentStanding = ArgumentStanding.UNSAID
    source: str = ""

    def __post_init__(self) -> None:
        check_source(self.edge, self.standing, self.source)


_ZEROS = (("softmax", Edge.SOFTMAX_ZERO), ("k", Edge.K_ZERO), ("v", Edge.V_ZERO))
_NEGATIVES = (("softmax", Edge.SOFTMAX_NEGATIVE), ("k", Edge.K_NEGATIVE), ("v", Edge.V_NEGATIVE))


def edges_of(case: Case) -> tuple[Edge, ...]:
    """Return the edges that a case has."""
    idle = (Edge.IDLE,) if any(step.idle for step in case.steps) else ()
    return (*_edges_of_factors(case.scales), *idle)


def _edges_of_factors(scales: Scales) -> tuple[Edge, ...]:
    zeros = (edge for name, edge in _ZEROS if getattr(scales, name) == 0)
    return (*zeros, *(edge for name, edge in _NEGATIVES if getattr(scales, name) < 0))


def edge_of(name: str, factor: float) -> Edge | None:
    """Return the edge that this value of the factor `name` of `Scales` is, or None."""
    return next(iter(_edges_of_factors(msgspec.structs.replace(Scales(), **{name: factor}))), None)
