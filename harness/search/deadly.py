"""Drawn cases that are not run, because known causes have killed too many workers."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from attnfuzz.harness.reduce.ablation import Feature, features_in
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.verdict.failures import DEATHS, Verdict
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device

Needs = tuple[str, ...]
"""The names of the features that a finding needs."""

Deadly = Mapping[Needs, tuple[frozenset[Feature], ...]]
"""What marks the deaths by known causes: one of these sets of features, by the needs of a finding."""

MOST_TIME = 0.25
"""Share of the time of a backend's drawn cases that deaths by known causes may take."""

SECONDS_PER_DEATH = {Device.CPU: 0.0, Device.CUDA: 10.0}
"""Seconds that a death costs at least: a replacement takes 12.6 s to start among 14 jobs on an H200, most of it waiting
for the driver, which creates the contexts of a GPU's processes almost one after the other
(docs/explanation/performance.md, Deaths). A job has spares and need not wait itself, but others do.
"""

LEAST_DEATHS = 3
"""Number of deaths that a cause must have caused before cases are skipped for it."""

DEADLY_SHARE = 1 / 8
"""Share of the cases with its marks that a cause must have killed, likewise."""


class KnownDeaths:
    """How often drawn cases of one backend killed their worker, by the known cause whose marks they have.

    While the deaths by known causes take too much time, cases in which one is likely are skipped. Those that are still
    run may fail in a new way, or show that the bug is fixed.
    """

    def __init__(self, device: Device) -> None:
        self._least = SECONDS_PER_DEATH[device]
        self._runs: Counter[Needs] = Counter()
        self._deaths: Counter[Needs] = Counter()
        self._lost = self._spent = 0.0
        self._lived = 0
        self._died = False

    def run(self, case: Case, deadly: Deadly, run: Callable[[], Verdict]) -> Verdict | None:
        """Return the verdict of running a drawn case, or None if it is skipped."""
        expected = expected_in(case, deadly)
        if self.skips(expected):
            return None
        start = time.monotonic()
        verdict = run()
        self.note(expected, verdict, time.monotonic() - start)
        return verdict

    def skips(self, expected: Iterable[Needs]) -> bool:
        """Return whether to skip a case in which these deaths are expected."""
        too_much = self._lost > MOST_TIME * (self._lost + self._spent)
        return too_much and any(self._is_deadly(needs) for needs in expected)

    def note(self, expected: Sequence[Needs], verdict: Verdict, seconds: float) -> None:
        """Count the run of a case in which these deaths were expected. It took `seconds`."""
        waited, self._died = self._died, bool(expected) and any(each.kind in DEATHS for each in verdict.observations)
        # A case after a death may wait for another worker.
        if waited or self._died:
            longer = max(0.0, seconds - self._spent / max(self._lived, 1))
            self._lost += max(longer, self._least if self._died else 0.0)
        else:
            self._spent += seconds
            self._lived += 1
        for needs in expected:
            self._runs[needs] += 1
            self._deaths[needs] += self._died

    def _is_deadly(self, needs: Needs) -> bool:
        return self._deaths[needs] >= max(LEAST_DEATHS, DEADLY_SHARE * self._runs[needs])


def deaths_of(causes: Iterable[KnownCause]) -> Deadly:
    """Return the causes that kill workers, by those of their findings that did.

    Needs that are known in part mark them as well: how many cases with these marks die is counted.
    """
    findings = (each for cause in causes for each in (cause, *map(cause.by, cause.showings)))
    deadly = (replace(each, ablated=True) for each in findings if each.fingerprint.kind in DEATHS and each.needs)
    return {each.needs: tuple(filter(None, each.marks())) for each in deadly}


def expected_in(case: Case, deadly: Deadly) -> list[Needs]:
    """Return the needs of those of the `deadly` causes whose marks the case has."""
    if not deadly:
        return []
    own = features_in(case)
    return [needs for needs, marks in deadly.items() if any(each <= own for each in marks)]
