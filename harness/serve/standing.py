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
    ServeExplained,
    ServeFiled,
    ServeFinished,
    ServeNotExamined,
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
from attnfuzz.harness.serve.judging import ServedFault, ServedKind
from attnfuzz.harness.serve.predictions import KnownServerCause
from attnfuzz.harness.serve.surface import Surface
from attnfuzz.harness.verdict.wording import count

MOST_ALIKE = 3
"""Failures of one kind that are minimized, and one more for each cause that was found among them.

Failures that a known cause explains are not minimized."""


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
        self.minimized: Counter[ServedKind] = Counter()
        self.symptoms: dict[str, Counter[str]] = {}
        self.explaining = 0.0
        self.not_examined = 0
        self.filed: dict[str, ServeFiled] = {}
        self.checked: dict[str, ServeChecked] = {}
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
        """Ignore events without a method below."""

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
        self._minimized(event.name, event.fault)

    @_take.register
    def _(self, event: ServeExplained) -> None:
        self._symptom(event.name, event.fault)
        self.explaining += event.seconds

    @_take.register
    def _(self, event: ServeNotExamined) -> None:
        self.not_examined += 1
        self.explaining += event.seconds

    def _minimized(self, name: str, fault: ServedFault) -> None:
        self.minimized[fault.kind] += 1
        self._symptom(name, fault)

    def _symptom(self, name: str, fault: ServedFault) -> None:
        self.symptoms.setdefault(name, Counter())[fault.seen] += 1

    @_take.register
    def _(self, event: ServeChecked) -> None:
        self.checked[event.name] = event

    @_take.register
    def _(self, event: ServeAgain) -> None:
        if event.fault is not None:
            self._minimized(event.name, event.fault)

    @_take.register
    def _(self, event: ServeUnconfirmed) -> None:
        self.unconfirmed.append(event)
        self.minimized[event.fault.kind] += 1

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
        """The causes that fail now, and that the ledger does not know."""
        return [each for each in self.causes if each.known is None and each.state is not State.FIXED]

    @property
    def causes(self) -> list[ServeFiled | ServeChecked]:
        """The latest on each cause: a finding is filed for the features that it needs and the oracle that sees it."""
        latest: dict[str, ServeFiled | ServeChecked] = {**self.checked, **self.filed}
        return list(latest.values())

    def minimized_like(self, fault: ServedFault) -> int:
        """Count the failures that were minimized, or run again in vain, and may be the bug of this one."""
        return sum(number for kind, number in self.minimized.items() if fault.like(ServedFault(kind, "")))

    @property
    def known_causes(self) -> list[KnownServerCause]:
        """The causes that fail now, whether the ledger knows them or not."""
        failing = (each for each in self.causes if each.state is not State.FIXED)
        return [KnownServerCause(each.name, each.needs, each.fault) for each in failing]

    def symptoms_of(self, name: str) -> str:
        """Count the failures that a cause explains, by kind and place; empty for a single one."""
        seen = self.symptoms.get(name, Counter())
        if seen.total() < 2:
            return ""
        return ", ".join(f"{words} {number:,}" for words, number in seen.most_common())

    @property
    def clean(self) -> bool:
        """Whether nothing fails that the ledger does not know, confirmed or suspected."""
        return not self.failing and not self.unconfirmed and not (self.finished and self.finished.ended)

    @property
    def verdict(self) -> str:
        """The result in a line."""
        number = len(self.failing)
        known = sum(each.known is not None and each.state is not State.FIXED for each in self.causes)
        failures = sum(self.symptoms.get(each.name, Counter()).total() for each in self.failing)
        parts = [count(number, "finding") if number else "no new finding"]
        if failures > number:
            parts = [f"{count(number, 'cause')} ({count(failures, 'failure')})"]
        if self.not_examined:
            parts.append(f"{count(self.not_examined, 'failure')} not examined")
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
