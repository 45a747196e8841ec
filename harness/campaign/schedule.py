"""The order of slices: the budget is shared among backends by yield."""

from collections.abc import Mapping, Sequence

from attnfuzz.harness.campaign.events import CoverageGrew, Event, FindingFiled, Progress, SliceFinished, SliceStarted
from attnfuzz.harness.campaign.turns import Running, Turns
from attnfuzz.harness.search.examples import derive_seed
from attnfuzz.harness.search.messages import Slice, SliceKind

EXAMPLES_PER_SLICE = 250

PAIRS_PER_FINDING = 25
"""Value of a new finding in new pairs of features: where there is one bug, there are more."""


_MOST_UNSUPPORTED = 9
"""Unsupported cases for each judged one, beyond which a backend is given up."""


OWN_TIME = frozenset({SliceKind.KEPT, SliceKind.MINIMIZED, SliceKind.SCRIPTED})
"""Slices whose time does not count as their backend's."""


class Schedule:
    """Hands out the slices of a campaign: with `examples`, until that many cases of each backend are judged.

    It is a handler of events, and learns from nothing else. Slices are numbered per backend, and a slice's seed follows
    from the campaign's seed, backend and number.
    """

    def __init__(self, backends: Sequence[str], *, examples: int | None, seed: int) -> None:
        self._backends = tuple(backends)
        self._examples = examples
        self._seed = seed
        self._turns = Turns(backends)
        self._handed_out = dict.fromkeys(backends, 0)
        self._searched = dict.fromkeys(backends, 0)
        self._unsupported = dict.fromkeys(backends, 0)
        self._gains = dict.fromkeys(backends, 0.0)

    def __call__(self, event: Event) -> None:
        """Learn from `event`."""
        match event:
            case SliceStarted(backend=backend, index=int(index)):
                self._handed_out[backend] = index + 1
            case Progress(backend=backend, tally=tally):
                self._searched[backend] += tally.searched
                self._unsupported[backend] += tally.unsupported
            case CoverageGrew(backend=backend, pairs=pairs):
                self._gains[backend] += len(pairs)
            case FindingFiled(fingerprint=fingerprint):
                self._gains[fingerprint.backend] += PAIRS_PER_FINDING
            case SliceFinished(backend=backend, kind=kind, seconds=seconds):
                # These have their own time, and the pairs of kept cases are no yield, because they were known.
                if kind not in OWN_TIME:
                    self._turns.spent(backend, seconds, gain=self._gains[backend])
                self._gains[backend] = 0.0

    def short(self, under_way: Sequence[Running] = ()) -> dict[str, tuple[float, float]]:
        """Return the backends that got less than their promised time: the seconds they got, and the promised ones.

        `under_way` is the same as for `next_slice`.
        """
        return self._turns.short(under_way)

    def next_slice(self, under_way: Sequence[Running], promised: Mapping[str, int]) -> Slice | None:
        """Return the next slice, or None when no examples are left to hand out.

        `under_way` are the backends of running slices, with their seconds so far, `promised` the examples of each
        backend that are already assigned.
        """
        sizes = {backend: self._size(backend, promised.get(backend, 0)) for backend in self._backends}
        backend = self._turns.next([name for name, size in sizes.items() if size], under_way)
        if backend is None:
            return None
        return drawn_slice(backend, self._handed_out[backend], sizes[backend], seed=self._seed)

    def _size(self, backend: str, promised: int) -> int:
        if self._examples is None:
            return EXAMPLES_PER_SLICE
        left = missing(self._examples, self._searched[backend], self._unsupported[backend])
        return max(0, min(EXAMPLES_PER_SLICE, left - promised))


def missing(examples: int, searched: int, unsupported: int) -> int:
    """Return the number of cases that are still to be drawn so that `examples` are judged.

    It is 0 for a backend that supports hardly any: `examples` and more than nine in ten cases were not supported.
    """
    allowed = examples + _MOST_UNSUPPORTED * searched - unsupported
    return max(0, min(allowed, examples - searched))


def drawn_slice(backend: str, index: int, examples: int, *, seed: int) -> Slice:
    """Return slice number `index` of a backend in a campaign with this seed."""
    return Slice(backend=backend, index=index, seed=derive_seed(seed, backend, index), examples=examples)
