"""Whether a known cause explains a failing trace: its predictions are run before it is believed.

A cause is the features that a failure needs, and the oracle that sees it. It explains a trace that fails alike and has
these features, if the trace passes without each of them, and still fails without all others. As
`attnfuzz.harness.search.explained` does for cases.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from attnfuzz.harness.serve.ablation import ARRIVALS, Repeat, ablated, features, without
from attnfuzz.harness.serve.judging import ServedFault
from attnfuzz.harness.serve.surface import Surface
from attnfuzz.harness.serve.trace import RequestTrace


class KnownServerCause(NamedTuple):
    """A cause that this campaign has seen fail: the finding that it is filed as, its needs, and its failure."""

    name: str
    needs: tuple[str, ...]
    fault: ServedFault


class TraceExplained(NamedTuple):
    """The name of the cause that explains a trace, or empty, and the trace to go on with.

    That is one without the features of a cause, if it fails too: something else is beneath.
    """

    cause: str
    trace: RequestTrace


def explain_trace(
    trace: RequestTrace,
    fault: ServedFault,
    known: Sequence[KnownServerCause],
    repeat: Repeat,
    surface: Surface,
    *,
    over: Callable[[], bool],
) -> TraceExplained:
    """Find the known cause that explains a failing trace: of several, the one that needs most is tried first."""
    beneath: list[KnownServerCause] = []
    left = sorted((each for each in known if each.fault.like(fault)), key=lambda each: -len(each.needs))
    while left and not over():
        cause = next((each for each in left if set(each.needs) <= set(features(trace, surface))), None)
        if cause is None:
            break
        left.remove(cause)
        failing = _failing_without(trace, cause.needs, repeat, surface)
        if failing is not None:
            # Those that were tried before may explain it now.
            trace = failing
            left = [each for each in known if each.fault.like(fault) and each != cause and each not in beneath]
            beneath.append(cause)
        elif _fails_with_these_alone(trace, cause.needs, repeat, surface, over):
            return TraceExplained(cause.name, trace)
    return TraceExplained("", trace)


def _failing_without(
    trace: RequestTrace, needs: Sequence[str], repeat: Repeat, surface: Surface
) -> RequestTrace | None:
    """Search for a trace without one of these features that fails; None if all pass.

    Without the one arrival, a trace has the other and may show another bug: it is tried where nothing else is needed.
    """
    marks = [name for name in needs if name not in ARRIVALS] or needs
    variants = (variant for name in marks for variant in without(trace, [name], surface))
    return next((variant for variant in variants if repeat(variant).times), None)


def _fails_with_these_alone(
    trace: RequestTrace, needs: Sequence[str], repeat: Repeat, surface: Surface, over: Callable[[], bool]
) -> bool:
    """Return whether the trace still fails without all other features; how requests arrive can't be left out.

    Without all of them together first: a failing run may cost a restart.
    """
    others = [name for name in features(trace, surface) if name not in {*needs, *ARRIVALS}]
    if not others or any(repeat(bare).times for bare in without(trace, others, surface)):
        return True
    found = ablated(trace, repeat, surface, over=over, kept=(*needs, *ARRIVALS), steady=False)
    return not found.needs and not found.untried
