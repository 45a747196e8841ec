"""Sums up what jobs tell of their progress, so that the log has an event a second and not four from each job."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from attnfuzz.harness.campaign.events import Progress
from attnfuzz.harness.search.messages import Tally

SECONDS_PER_PROGRESS = 1.0


@dataclass
class _Sum:
    searched: int = 0
    cases: int = 0
    deaths: int = 0
    rows: int = 0
    shrinking: bool = False
    margins: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)


class Tallies:
    """What each backend went through and no event has told yet. `clock` gives the time in the campaign."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._untold: dict[str, _Sum] = {}
        self._told_at: dict[str, float] = {}

    def add(self, backend: str, tally: Tally) -> None:
        """Count a tally."""
        total = self._untold.setdefault(backend, _Sum())
        total.searched += tally.searched
        total.cases += tally.cases
        total.deaths += tally.deaths
        total.rows += tally.rows
        total.shrinking = tally.shrinking
        for phase, seconds in tally.phases.items():
            total.phases[phase] = total.phases.get(phase, 0.0) + seconds
        for tier, margin in tally.margins.items():
            total.margins[tier] = max(margin, total.margins.get(tier, 0.0))

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
            yield Progress(
                at=at,
                backend=backend,
                searched=total.searched,
                cases=total.cases,
                deaths=total.deaths,
                rows=total.rows,
                shrinking=total.shrinking,
                margins=total.margins,
                phases=total.phases,
            )
