"""Where a campaign against a server stands: a fold over its events."""

from collections import Counter
from collections.abc import Iterable
from functools import singledispatchmethod
from typing import Self

from attnfuzz.harness.findings.state import State
from attnfuzz.harness.serve.events import (
    AnyServeEvent,
    FloorMeasured,
    NoLongerDrawn,
    ServeAgain,
    ServeChecked,
    ServeFiled,
    ServeFinished,
    ServeProgress,
    ServeRemark,
    ServeResumed,
    ServerFound,
    ServerRestarted,
    ServeStarted,
    ServeSuspect,
    ServeTrouble,
    ServeUnconfirmed,
)
from attnfuzz.harness.serve.floor import NoiseFloor
from attnfuzz.harness.serve.judging import ServedKind
from attnfuzz.harness.serve.surface import Surface
from attnfuzz.harness.verdict.wording import count

MOST_ALIKE = 3
"""Failures of one kind that are minimized; later ones are only counted."""


class ServeStanding:
    """Counts and findings of a campaign. Call it with each event, in order."""

    def __init__(self) -> None:
        self.started: ServeStarted | None = None
        self.finished: ServeFinished | None = None
        self.surface: Surface | None = None
        self.floor: NoiseFloor | None = None
        self.at = self.searched = 0.0
        self._searched_from = 0.0
        self.traces = self.requests = self.tokens = self.slices = 0
        self.busy = self.margin = self.preempted = self.hits = 0.0
        self.suspects: Counter[ServedKind] = Counter()
        self.filed: dict[str, ServeFiled] = {}
        self.checked: dict[str, ServeChecked] = {}
        self.again: dict[str, int] = {}
        self.unconfirmed: list[ServeUnconfirmed] = []
        self.restarts: list[ServerRestarted] = []
        self.avoided: list[NoLongerDrawn] = []
        self.troubles: list[str] = []
        self.remarks: list[str] = []

    @classmethod
    def of(cls, events: Iterable[AnyServeEvent]) -> Self:
        """Fold these events."""
        standing = cls()
        for event in events:
            standing(event)
        return standing

    def __call__(self, event: AnyServeEvent) -> None:
        """Take one event."""
        self.at = max(self.at, event.at)
        self._take(event)

    @singledispatchmethod
    def _take(self, event: AnyServeEvent) -> None:
        """Events without a method below change nothing."""

    @_take.register
    def _(self, event: ServeStarted) -> None:
        self.started = event

    @_take.register
    def _(self, event: ServeResumed) -> None:
        self.finished = None

    @_take.register
    def _(self, event: ServeSuspect) -> None:
        self.suspects[event.fault.kind] += 1

    @_take.register
    def _(self, event: ServerFound) -> None:
        self.surface = event.surface

    @_take.register
    def _(self, event: FloorMeasured) -> None:
        self.floor = event.floor
        self._searched_from = event.at - self.searched

    @_take.register
    def _(self, event: ServeFiled) -> None:
        self.filed[event.name] = event

    @_take.register
    def _(self, event: ServeChecked) -> None:
        self.checked[event.name] = event

    @_take.register
    def _(self, event: ServeAgain) -> None:
        self.again[event.name] = self.again.get(event.name, 0) + 1

    @_take.register
    def _(self, event: ServeUnconfirmed) -> None:
        self.unconfirmed.append(event)

    @_take.register
    def _(self, event: ServerRestarted) -> None:
        self.restarts.append(event)

    @_take.register
    def _(self, event: NoLongerDrawn) -> None:
        self.avoided.append(event)

    @_take.register
    def _(self, event: ServeTrouble) -> None:
        self.troubles.append(event.text)

    @_take.register
    def _(self, event: ServeRemark) -> None:
        self.remarks.append(event.title)

    @_take.register
    def _(self, event: ServeFinished) -> None:
        self.finished = event

    @_take.register
    def _(self, event: ServeProgress) -> None:
        self.traces += event.traces
        self.requests += event.requests
        self.tokens += event.tokens
        self.busy += event.busy
        self.preempted += event.preempted
        self.hits += event.hits
        self.margin = max(self.margin, event.margin)
        self.slices = max(self.slices, event.index + 1)
        self.searched = max(0.0, event.at - self._searched_from)

    @property
    def settled(self) -> set[str]:
        """The findings that this campaign has run."""
        return self.filed.keys() | self.checked.keys()

    @property
    def failing(self) -> list[ServeFiled | ServeChecked]:
        """The findings that fail now, and that the ledger does not know."""
        latest: dict[str, ServeFiled | ServeChecked] = {**self.checked, **self.filed}
        return [each for each in latest.values() if each.known is None and each.state is not State.FIXED]

    @property
    def clean(self) -> bool:
        """Whether nothing fails that the ledger does not know, confirmed or suspected."""
        return not self.failing and not self.unconfirmed and not (self.finished and self.finished.ended)

    @property
    def verdict(self) -> str:
        """The result in a line."""
        number = len(self.failing)
        filed, checked = self.filed.values(), self.checked.values()
        known = sum(each.known is not None for each in filed) + sum(each.known is not None for each in checked)
        parts = [count(number, "finding") if number else "no new finding"]
        if known:
            parts.append(f"{known} known")
        if self.unconfirmed:
            parts.append(f"{len(self.unconfirmed)} not confirmed")
        minutes = max(self.searched, 1e-9) / 60
        rate = f"{self.traces / minutes:.0f} per minute" if self.searched > 1 else "no rate yet"
        return (
            f"{', '.join(parts)} in {count(self.traces, 'trace')} ({rate}) of {count(self.requests, 'request')} and "
            f"{count(self.tokens, 'token')}"
        )

    @property
    def busy_share(self) -> float:
        """Share of the time in which a request was under way."""
        return min(1.0, self.busy / self.searched) if self.searched else 0.0
