"""Opening sessions, with the argument forms and edges of a case and their standing in the API."""

from collections.abc import Callable

from attnfuzz.kernels.argument_forms import opened_in_forms
from attnfuzz.kernels.backend import Bench, Session
from attnfuzz.kernels.edges import at_edges
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case


def opened(open_session: Callable[[Case, Bench], Session], case: Case, bench: Bench, capability: Capability) -> Session:
    """Open a session on `case` for a backend of this capability."""
    session = opened_in_forms(open_session, case, bench, capability.arguments)
    return at_edges(session, case, capability.edges)
