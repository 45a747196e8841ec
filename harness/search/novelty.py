"""What a case did that none did before it: pairs of features that were reached, and margins."""

from collections.abc import Callable, Collection

from attnfuzz.harness.search.messages import Interesting
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference.case import Case
from attnfuzz.strategies.coverage import Pair

RECORD = 1.1
"""How much larger than the largest before it a margin is that is worth telling: each tier has a few dozen, no more."""

WORTH_TELLING = 0.3
"""The margin below which nothing is close to failing, and a record says nothing."""


class Novelty:
    """Remembers, for each backend, the pairs and the largest margins so far; no cases, so that it does not grow.

    `pairs_of` gives the pairs of features of a case.
    """

    def __init__(self, pairs_of: Callable[[Case], Collection[Pair]]) -> None:
        self._pairs_of = pairs_of
        self._reached: dict[str, set[Pair]] = {}
        self._records: dict[str, dict[str, float]] = {}

    def of(self, case: Case, verdict: Verdict) -> Interesting | None:
        """What is new about a case that was judged; None if nothing is, or if its backend rejected it."""
        if verdict.unsupported is not None:
            return None
        reached = self._reached.setdefault(case.backend, set())
        pairs = sorted(pair for pair in self._pairs_of(case) if pair not in reached)
        reached.update(pairs)
        # The margins of what fails belong to a finding. They would also hide how close others come.
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
