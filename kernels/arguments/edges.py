"""Edges in sessions: treating exceptions as refusals, depending on whether an API promises the edges of a case."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from attnfuzz.kernels.arguments.argument_forms import breaks_a_promise, opened_in_forms
from attnfuzz.kernels.interface.backend import Bench, NotRefused, Result, Session, Unsupported
from attnfuzz.reference.arguments import ArgumentStanding
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.edges import Edge, EdgeRule, edges_of

UNSAID_EDGES: Final = tuple(map(EdgeRule, Edge))
"""An API that takes any number as a factor and tensors of any size, without stating limits."""

UNSAID_FACTORS: Final = tuple(rule for rule in UNSAID_EDGES if rule.edge is not Edge.IDLE)
"""Such an API, but this project makes its calls from requests, so that there are no calls without requests."""


UNSAID_BUT_ZERO: Final = tuple(rule for rule in UNSAID_FACTORS if rule.edge is not Edge.SOFTMAX_ZERO)
"""Such an API, but it treats a softmax scale of 0 as none (docs/findings/scale-of-zero.md)."""


OF_THE_SOFTMAX_SCALE: Final = (Edge.SOFTMAX_ZERO, Edge.SOFTMAX_NEGATIVE, Edge.K_ZERO, Edge.K_NEGATIVE)
"""The edges by which logits are multiplied by 0 or less."""


def at_edges(session: Session, case: Case, rules: Sequence[EdgeRule]) -> Session:
    """Return a session whose exceptions are refusals, unless the API promises the edges of `case`."""
    edges = edges_of(case)
    uncertain = [rule for rule in rules if rule.edge in edges and rule.standing is not ArgumentStanding.PROMISED]
    return _EdgeSession(session, case, uncertain) if uncertain else session


@dataclass(frozen=True)
class _EdgeSession:
    session: Session
    case: Case
    rules: Sequence[EdgeRule]

    def __getattr__(self, name: str) -> Any:
        # A writer before attention needs the pool of its session.
        return getattr(self.session, name)

    def forward(self, index: int) -> Result | None:
        """See `Session`.

        Raises:
            Unsupported: the API raises. No plain call has the same output.
            NotRefused: it does not, although it refuses the edge.
        """
        rules = [rule for rule in self.rules if rule.edge is not Edge.IDLE or self.case.steps[index].idle]
        try:
            result = self.session.forward(index)
        except Unsupported:
            raise
        except Exception as error:
            # An API may refuse by any exception.
            if not rules or breaks_a_promise(error):
                raise
            raise Unsupported(f"{', '.join(rule.edge for rule in rules)} is refused: {error}") from error
        refused = [rule for rule in rules if rule.standing is ArgumentStanding.REFUSED]
        if refused and result is not None:
            raise NotRefused(f"{refused[0].edge}: accepted, although the API refuses it ({refused[0].source})")
        return result


def opened(open_session: Callable[[Case, Bench], Session], case: Case, bench: Bench, capability: Capability) -> Session:
    """Open a session on `case` for a backend of this capability."""
    session = opened_in_forms(open_session, case, bench, capability.arguments)
    return at_edges(session, case, capability.edges)
