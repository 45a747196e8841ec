"""The preconditions that the calls of a case break."""

from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.reference.calls import CallCase

Breached = frozenset[tuple[str, tuple[str, ...]]]


def breached(case: CallCase) -> Breached:
    """The broken preconditions, each as an entry point and its arguments."""
    found = set()
    for index, call in enumerate(case.calls):
        entry = ENTRY_POINTS.get(call.op)
        if entry is not None:
            found |= {(call.op, breach.arguments) for breach in entry.breaches(literal_arguments(case, index))}
    return frozenset(found)
