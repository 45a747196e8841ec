"""Sums up what jobs tell of their progress, so that the log has an event a second and not four from each job."""

from collections.abc import Callable, Iterator

from attnfuzz.harness.campaign.events import Progress
from attnfuzz.harness.search.messages import Tally

SECONDS_PER_PROGRESS = 1.0


class Tallies:
    """What each backend went through and no event has told yet. `clock` gives the time in the campaign."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._untold: dict[str, Tally] = {}
        self._told_at: dict[str, float] = {}

    def add(self, backend: str, tally: Tally) -> None:
        """Count a tally."""
        self._untold[backend] = self._untold.get(backend, Tally()) + tally

    @property
    def untold(self) -> dict[str, int]:
        """The examples of each backend that were searched, and that no event has told yet."""
        return {backend: total.searched for backend, total in self._untold.items()}

    def due(self) -> Iterator[Progress]:
        """The progress of the backends that have some, and told none for a second."""
        for backend in list(self._untold):
            if self._clock() - self._told_at.get(backend, -SECONDS_PER_PROGRESS) >= SECONDS_PER_PROGRESS:
                yield from self.flush(backend)

    def flush(self, backend: str) -> Iterator[Progress]:
        """The progress of `backend`, if it has some."""
        total = self._untold.pop(backend, None)
        if total is not None:
            at = self._told_at[backend] = self._clock()
            yield Progress(at=at, backend=backend, tally=total)
