"""The novelty of a case: newly reached pairs of features, and record margins."""

from collections.abc import Callable
from typing import Any, Protocol

from attnfuzz.harness.family import family_of
from attnfuzz.harness.search.messages import Interesting
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.strategies.coverage import Pair

RECORD = 1.1
"""Factor over the last record for a margin to be reported, which gives a few dozen records per tier at most."""

_RAISES = frozenset({Kind.RAISED, Kind.UNEXPECTED_REJECTION})

WORTH_TELLING = 0.3
"""Margin below which records are not reported, because nothing is close to failing."""


class PairsOfCases(Protocol):
    """The pairs of features of cases: those that a case shows, as bits, and the pairs in such a set, sorted."""

    def pair_bits(self, case: Any) -> int: ...  # noqa: D102

    def pairs_in(self, bits: int) -> tuple[Pair, ...]: ...  # noqa: D102


class Novelty:
    """Remembers the pairs and the largest margins of each backend, but no cases, so its size is bounded.

    `space_of` returns the space of a case.
    """

    def __init__(self, space_of: Callable[[AnyCase], PairsOfCases]) -> None:
        self._space_of = space_of
        self._reached: dict[str, int] = {}
        self._records: dict[str, dict[str, float]] = {}

    def of(self, case: AnyCase, verdict: Verdict) -> Interesting | None:
        """Return the novelty of a judged case, or None if there is none or its backend rejected it.

        Steps from the first one in which no kernel ran reach nothing.
        """
        if verdict.unsupported is not None:
            return None
        reached = self._reached.get(case.backend, 0)
        ran, space = _ran(verdict), self._space_of(case)
        shown = case if ran is None else family_of(case).first_steps(case, ran)
        new = space.pair_bits(shown) & ~reached if shown.modes else 0
        self._reached[case.backend] = reached | new
        # A failing case's margins belong to its finding, and would hide how close other cases come.
        margins = {} if verdict.failures else self._new_records(case.backend, verdict)
        if not new and not margins:
            return None
        return Interesting(case=case, pairs=space.pairs_in(new) if new else (), margins=margins)

    def _new_records(self, backend: str, verdict: Verdict) -> dict[str, float]:
        records = self._records.setdefault(backend, {})
        new = {
            tier: margin
            for tier, margin in verdict.margins.items()
            if margin >= max(WORTH_TELLING, RECORD * records.get(tier, 0.0))
        }
        records.update(new)
        return new


def _ran(verdict: Verdict) -> int | None:
    """Return the number of steps in which a kernel ran, or None for all.

    A case ends with the first step that fails. No kernel ran in it if nothing was launched, or the backend raised.
    """
    if not verdict.failures:
        return None
    last = min(each.step for each in verdict.failures)
    ran = all(each.kernel and each.kind not in _RAISES for each in verdict.failures if each.step == last)
    return max(0, last + ran)
