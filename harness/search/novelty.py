"""The novelty of a case: newly reached pairs of features, and record margins."""

from collections.abc import Callable, Collection

from attnfuzz.harness.search.messages import Interesting
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference.case import Case
from attnfuzz.strategies.coverage import Pair

RECORD = 1.1
"""Factor over the last record for a margin to be reported: a few dozen per tier at most."""

WORTH_TELLING = 0.3
"""Margin below which records are not reported: nothing is close to failing."""


class Novelty:
    """Remembers the pairs and the largest margins of each backend, but no cases, so that it doesn't grow.

    `pairs_of` returns the pairs of features of a case.
    """

    def __init__(self, pairs_of: Callable[[Case], Collection[Pair]]) -> None:
        self._pairs_of = pairs_of
        self._reached: dict[str, set[Pair]] = {}
        self._records: dict[str, dict[str, float]] = {}

    def of(self, case: Case, verdict: Verdict) -> Interesting | None:
        """The novelty of a judged case; None if there is none, or if its backend rejected it."""
        if verdict.unsupported is not None:
            return None
        reached = self._reached.setdefault(case.backend, set())
        pairs = sorted(pair for pair in self._pairs_of(case) if pair not in reached)
        reached.update(pairs)
        # A failing case's margins belong to its finding, and would hide how close others come.
        margins = {} if verdict.failures else self._new_records(case.backend, verdict)
        return Interesting(case=case, pairs=tuple(pairs), margins=margins) if pairs or margins else None

    def _new_records(self, backend: str, verdict: Verdict) -> dict[str, float]:
        records = self._records.setdefault(backend, {})
        new = {
            tier: margin
            for tier, margin in verdict.margins.items()
            if margin >= max(WORTH_TELLING, RECORD * records.get(tier, 0.0))
        }
        records.update(new)
        return new
