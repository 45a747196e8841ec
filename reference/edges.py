"""Arguments at the edges of their range: factors of 0 and below, and batches of none.

The right answer follows from the formula, as for any other factor. A softmax scale of 0 makes all visible keys count
alike, and one below 0 turns their order around. An infinite one has no right answer: the difference of two infinite
logits is no number. A batch of none has no answer, but perhaps rows of padding.
"""

from enum import StrEnum

import msgspec

from attnfuzz.reference.arguments import ArgumentStanding, check_source
from attnfuzz.reference.case import Case, Scales


class Edge(StrEnum):
    """A factor that is 0 or below, or a step that has no requests, as a rank of a group may have to run."""

    SOFTMAX_ZERO = "a softmax scale of 0"
    SOFTMAX_NEGATIVE = "a softmax scale below 0"
    K_ZERO = "a K scale of 0"
    K_NEGATIVE = "a K scale below 0"
    V_ZERO = "a V scale of 0"
    V_NEGATIVE = "a V scale below 0"
    IDLE = "a step without requests"


class EdgeRule(msgspec.Struct, frozen=True):
    """The standing of an edge, as `ArgumentRule` has that of a form."""

    edge: Edge
    standing: ArgumentStanding = ArgumentStanding.UNSAID
    source: str = ""

    def __post_init__(self) -> None:
        check_source(self.edge, self.standing, self.source)


_ZEROS = (("softmax", Edge.SOFTMAX_ZERO), ("k", Edge.K_ZERO), ("v", Edge.V_ZERO))
_NEGATIVES = (("softmax", Edge.SOFTMAX_NEGATIVE), ("k", Edge.K_NEGATIVE), ("v", Edge.V_NEGATIVE))


def edges_of(case: Case) -> tuple[Edge, ...]:
    """The edges that a case is at."""
    idle = (Edge.IDLE,) if any(step.idle for step in case.steps) else ()
    return (*_edges_of_factors(case.scales), *idle)


def _edges_of_factors(scales: Scales) -> tuple[Edge, ...]:
    zeros = (edge for name, edge in _ZEROS if getattr(scales, name) == 0)
    return (*zeros, *(edge for name, edge in _NEGATIVES if getattr(scales, name) < 0))


def edge_of(name: str, factor: float) -> Edge | None:
    """The edge that the factor `name` of `Scales` is at."""
    return next(iter(_edges_of_factors(msgspec.structs.replace(Scales(), **{name: factor}))), None)
