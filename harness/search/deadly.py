"""Drawn cases that are not run, because a known cause killed the workers of most cases like them."""

from collections import Counter
from collections.abc import Iterable, Sequence

from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.verdict.failures import DEATHS, Kind, Verdict
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device

LEAST_RUNS = 4
"""Runs of cases with the marks of a cause before any is skipped."""

DEADLY_SHARE = 0.5
"""A cause is deadly if it kills the worker in at least this share of them."""

TURNS = 8
"""One in eight cases with the marks of a deadly cause is run: it may fail in a new way, or the bug may be fixed."""


class KnownDeaths:
    """How often drawn cases of one backend killed their worker, by the known cause whose marks they have.

    On a GPU a death costs as much as tens of cases, and it slows the other jobs, since the driver creates the contexts
    of all processes almost one after the other (docs/explanation/performance.md, Deaths). On a CPU it costs two or
    three cases, so only hangs are skipped, each of which takes its whole time limit.
    """

    def __init__(self, device: Device) -> None:
        self._kinds = DEATHS if device is Device.CUDA else frozenset({Kind.HANG})
        self._runs: Counter[tuple[str, ...]] = Counter()
        self._deaths: Counter[tuple[str, ...]] = Counter()
        self._met = 0

    def among(self, causes: Iterable[KnownCause]) -> list[KnownCause]:
        """Return the causes of deaths, each by those of its findings that died."""
        findings = (each for cause in causes for each in (cause, *map(cause.by, cause.showings)))
        return [each for each in findings if each.fingerprint.kind in self._kinds and each.needs]

    def expected(self, case: Case, causes: Sequence[KnownCause]) -> list[tuple[str, ...]]:
        """Return the needs of those `causes` whose marks the case has."""
        return [each.needs for each in causes if each.marks_in(case)]

    def skips(self, expected: Iterable[tuple[str, ...]]) -> bool:
        """Return whether to skip a case in which these deaths are expected."""
        if not any(self._is_deadly(needs) for needs in expected):
            return False
        self._met += 1
        return self._met % TURNS != 0

    def note(self, expected: Iterable[tuple[str, ...]], verdict: Verdict) -> None:
        """Count the run of a case in which these deaths were expected."""
        died = any(each.kind in self._kinds for each in verdict.observations)
        for needs in expected:
            self._runs[needs] += 1
            self._deaths[needs] += died

    def _is_deadly(self, needs: tuple[str, ...]) -> bool:
        runs = self._runs[needs]
        return runs >= LEAST_RUNS and self._deaths[needs] >= DEADLY_SHARE * runs
