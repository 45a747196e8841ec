"""Counting a runner's runs, and reporting them regularly, so that long shrinking shows progress."""

import time
from collections.abc import Callable, Sequence

from msgspec import structs

from attnfuzz.harness.family import family_of
from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.search.messages import DtypeMargins, Recognized, Tally
from attnfuzz.harness.verdict.failures import DEATHS, Kind, Verdict
from attnfuzz.reference.any_case import AnyCase

SECONDS_PER_TALLY = 0.25


class CountingRunner:
    """A runner that counts the runs of `runner`, and workers that died. Each run is reported once, when it is over.

    `total` is the sum of its runs, `hang_seconds` the time of the last hang. The caller sets `shrinking`, which each
    tally repeats.
    """

    def __init__(self, runner: RepeatingRunner, tell: Callable[[Tally], None]) -> None:
        self._runner = runner
        self._tell = tell
        self._news = self.total = Tally()
        self._reported_at = time.monotonic()
        self.shrinking = False
        self.hang_seconds = 0.0

    def verdict(self, case: AnyCase) -> Verdict:
        """Run a case that was not drawn: to shrink, to confirm, or because it was kept."""
        return self._run(case, drawn=False)

    def search(self, case: AnyCase) -> Verdict:
        """Run a drawn case: one more example."""
        return self._run(case, drawn=True)

    def recognized(self, entry: int, counts: Recognized) -> None:
        """Count failures that the ledger's entry of this number may account for, or under 0 a known cause."""
        counted = Tally(recognized={entry: counts})
        self.total += counted
        self._news += counted

    def renew(self) -> None:
        """Use a fresh worker for the next case."""
        self._runner.renew()

    @property
    def history(self) -> tuple[AnyCase, ...]:
        """The cases that the worker of the last case had run before it."""
        return self._runner.history

    def together(self, cases: Sequence[AnyCase]) -> list[Verdict]:
        """Run cases at the same time."""
        verdicts = self._runner.together(cases)
        for case, verdict in zip(cases, verdicts, strict=True):
            self._count(case, verdict, drawn=False)
        return verdicts

    def flush(self) -> None:
        """Report pending counts."""
        news, self._news = self._news, Tally()
        self._reported_at = time.monotonic()
        if news.searched or news.unsupported or news.cases or news.recognized:
            self._tell(structs.replace(news, shrinking=self.shrinking))

    def _run(self, case: AnyCase, *, drawn: bool) -> Verdict:
        began = time.monotonic()
        verdict = self._runner.verdict(case)
        if any(observation.kind is Kind.HANG for observation in verdict.observations):
            self.hang_seconds = time.monotonic() - began
        self._count(case, verdict, drawn=drawn)
        return verdict

    def _count(self, case: AnyCase, verdict: Verdict, *, drawn: bool) -> None:
        judged = verdict.unsupported is None
        margins = {} if verdict.failures else verdict.margins
        dtype = family_of(case).noise_dtype(case) if margins else None
        ran = Tally(
            searched=int(drawn and judged),
            unsupported=int(drawn and not judged),
            cases=int(judged),
            deaths=int(any(observation.kind in DEATHS for observation in verdict.observations)),
            rows=verdict.rows,
            margins=margins,
            dtypes={} if dtype is None else {dtype: DtypeMargins(verdict.rows, margins)},
            phases={} if verdict.unsupported is not None else verdict.seconds,
        )
        self.total += ran
        self._news += ran
        if time.monotonic() - self._reported_at >= SECONDS_PER_TALLY:
            self.flush()
