"""The largest margins of each tier, and which cases hold them."""

from collections.abc import Iterable

from attnfuzz.harness.corpus.kept import IndexEntry, Kept

HOLDERS = 3
"""Cases that are kept for a tier of a backend. More would be variations of one."""


class Records:
    """For each tier of each backend, the `HOLDERS` cases with the largest margins."""

    def __init__(self, kept: Iterable[Kept]) -> None:
        self._best: dict[tuple[str, str], list[tuple[float, str]]] = {}
        for each in kept:
            self.add(each.case.backend, each.entry)

    def broken_by(self, backend: str, entry: IndexEntry) -> bool:
        """Whether a case would be among the holders."""
        return not self.holds(backend, entry.case) and any(
            len(best := self._best.get((backend, tier), [])) < HOLDERS or margin > best[-1][0]
            for tier, margin in entry.margins.items()
        )

    def holds(self, backend: str, case: str) -> bool:
        """Whether the case is a holder for one tier at least."""
        return any(case == holder for (of, _), best in self._best.items() if of == backend for _, holder in best)

    def add(self, backend: str, entry: IndexEntry) -> list[str]:
        """Count a case, and return those that it beats in every tier that they held."""
        beaten: list[str] = []
        for tier, margin in entry.margins.items():
            best = self._best.setdefault((backend, tier), [])
            ranked = sorted({(margin, entry.case), *best}, reverse=True)
            best[:] = ranked[:HOLDERS]
            beaten += [case for _, case in ranked[HOLDERS:]]
        return [case for case in dict.fromkeys(beaten) if not self.holds(backend, case)]
