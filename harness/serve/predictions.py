"""Known causes of failures of a server, and their predictions about a failing trace."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from attnfuzz.harness.search.attribute import attribute
from attnfuzz.harness.serve.ablation import ARRIVALS, Repeat, ablated, features, without
from attnfuzz.harness.serve.judging import ServedFault
from attnfuzz.harness.serve.surface import Surface
from attnfuzz.harness.serve.trace import RequestTrace


class KnownServerCause(NamedTuple):
    """A cause that this campaign has seen fail: the finding that it is filed as, its needs, and its failure."""

    name: str
    needs: tuple[str, ...]
    fault: ServedFault


def attribute_trace(
    trace: RequestTrace,
    fault: ServedFault,
    known: Iterable[KnownServerCause],
    repeat: Repeat,
    surface: Surface,
    *,
    over: Callable[[], bool],
) -> tuple[KnownServerCause | None, RequestTrace]:
    """Find the known cause that explains a failing trace: of several, the one that needs most is tried first."""
    likely = sorted((each for each in known if each.fault.like(fault)), key=lambda each: -len(each.needs))
    return attribute(_TracePredictions(repeat, surface, over), trace, likely)


class _TracePredictions:
    """Runs variants of a failing trace with `repeat`, until the time is `over`."""

    def __init__(self, repeat: Repeat, surface: Surface, over: Callable[[], bool]) -> None:
        self._repeat, self._surface, self.over = repeat, surface, over

    def marks(self, cause: KnownServerCause, tried: RequestTrace) -> Collection[str] | None:
        """Return the needs of the cause, if the trace has them."""
        return cause.needs if set(cause.needs) <= set(features(tried, self._surface)) else None

    def without(self, tried: RequestTrace, marks: Collection[str]) -> Iterator[RequestTrace]:
        """Yield traces without one of the marks.

        Without the one arrival, a trace has the other and may show another bug: it is tried where nothing else is
        needed.
        """
        names = [name for name in marks if name not in ARRIVALS] or list(marks)
        return (variant for name in names for variant in without(tried, [name], self._surface))

    def fails(self, variant: RequestTrace) -> bool:
        """Return whether a trace fails alike in one of its runs."""
        return self._repeat(variant).times > 0

    def passes(self, cause: KnownServerCause, variant: RequestTrace, marks: Collection[str]) -> bool:
        """Return True: a trace that does not fail alike passes."""
        return True

    def alone(self, cause: KnownServerCause, tried: RequestTrace, marks: Collection[str]) -> RequestTrace | None:
        """Return the trace if it still fails without all other features; how requests arrive can't be left out.

        Without all of them together first: a failing run may cost a restart.
        """
        others = [name for name in features(tried, self._surface) if name not in {*marks, *ARRIVALS}]
        if not others or any(map(self.fails, without(tried, others, self._surface))):
            return tried
        kept = (*marks, *ARRIVALS)
        found = ablated(tried, self._repeat, self._surface, over=self.over, kept=kept, steady=False)
        return None if found.needs or found.untried else tried
