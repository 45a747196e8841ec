"""Counts what a runner runs, and tells it now and then, so that a long shrink shows as progress too."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from attnfuzz.harness.sandbox.case_runner import CaseRunner
from attnfuzz.harness.search.messages import Tally
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.case import Case

DEATHS = frozenset({Kind.ILLEGAL_ACCESS, Kind.MISALIGNED, Kind.HANG, Kind.WORKER_DIED})
SECONDS_PER_TALLY = 0.25


@dataclass
class _News:
    """What has not been told yet."""

    searched: int = 0
    cases: int = 0
    deaths: int = 0
    rows: int = 0
    margins: dict[str, float] = field(default_factory=dict)
    phases: Counter[str] = field(default_factory=Counter)


class CountingRunner:
    """A runner that counts what `runner` runs, and the workers that died of it. Each run is told once, when it is over.

    `shrinking` is for the caller to set; each tally says what it was.
    """

    def __init__(self, runner: CaseRunner[Case], tell: Callable[[Tally], None]) -> None:
        self._runner = runner
        self._tell = tell
        self._news = _News()
        self._told_at = time.monotonic()
        self.searched = 0
        self.cases = 0
        self.deaths = 0
        self.shrinking = False

    def verdict(self, case: Case) -> Verdict:
        """Run `case`, which the search came back to: to shrink, to confirm, or because it was kept."""
        return self._run(case, drawn=False)

    def search(self, case: Case) -> Verdict:
        """Run `case`, which was drawn: one more example."""
        return self._run(case, drawn=True)

    def renew(self) -> None:
        """Have the next case run by a worker that has run nothing."""
        self._runner.renew()

    def flush(self) -> None:
        """Tell what has not been told."""
        news, self._news = self._news, _News()
        self._told_at = time.monotonic()
        if news.cases:
            self._tell(
                Tally(
                    searched=news.searched,
                    cases=news.cases,
                    deaths=news.deaths,
                    shrinking=self.shrinking,
                    rows=news.rows,
                    margins=news.margins,
                    phases=dict(news.phases),
                )
            )

    def _run(self, case: Case, *, drawn: bool) -> Verdict:
        verdict = self._runner.verdict(case)
        died = any(observation.kind in DEATHS for observation in verdict.observations)
        self.searched += drawn
        self.cases += 1
        self.deaths += died
        self._note(verdict, drawn=drawn, died=died)
        if time.monotonic() - self._told_at >= SECONDS_PER_TALLY:
            self.flush()
        return verdict

    def _note(self, verdict: Verdict, *, drawn: bool, died: bool) -> None:
        news = self._news
        news.searched += drawn
        news.cases += 1
        news.deaths += died
        news.rows += verdict.rows
        news.phases.update(verdict.seconds)
        if not verdict.failures:
            for tier, margin in verdict.margins.items():
                news.margins[tier] = max(margin, news.margins.get(tier, 0.0))
