"""Drawing the features of known deadly failures rarely, because each death of a GPU's worker costs seconds."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

from attnfuzz.harness.family import families, family_of
from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.reduce.plainest import without_one
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.verdict.failures import DEATHS
from attnfuzz.reference.any_case import AnyCase

SHARE: Final = 0.02
"""Maximum share of a backend's searched cases that have all features of a known deadly failure."""


class RareDeaths:
    """Takes features away from drawn cases, so that few of them fail in a known deadly way.

    A deadly failure is known by the words of the features that it needs: those of ledger entries for deaths alone, the
    clues of known causes, and those of failures that passed without them (`learn`). An entry that names a group of
    features says only that some of them kill a worker: which ones is learned. All rows of the table of features are
    covered, because drawn cases are changed, not the strategies. A job keeps this between its slices.
    """

    def __init__(self, ledger: Iterable[Entry] = ()) -> None:
        groups = {name for family in families() for name in family.table.groups}
        self._ledger = [
            each
            for each in ledger
            if each.features and each.kinds and DEATHS.issuperset(each.kinds) and groups.isdisjoint(each.features)
        ]
        self._learned: dict[str, set[frozenset[str]]] = defaultdict(set)
        self._searched: dict[str, int] = defaultdict(int)
        self._kept: dict[str, int] = defaultdict(int)

    def learn(self, backend: str, words: frozenset[str]) -> None:
        """Add a deadly failure of a backend that passed without one of these features."""
        self._learned[backend].add(words)

    def instead_of(self, case: AnyCase, causes: Iterable[KnownCause], allowed: Callable[[Any], bool]) -> AnyCase:
        """Return a drawn case, or the case without a feature of each deadly failure that it would show.

        It stays as it is if that is impossible, and in so few cases that they are at most `SHARE` of the searched ones.
        """
        backend, less = case.backend, case
        turn = self._searched[backend]
        self._searched[backend] += 1
        # Without a feature of one failure, the case may not have those of the next one.
        for words in sorted(self._known_in(case, causes), key=sorted):
            less, _ = without_one(less, words, allowed, turn=turn)
        if less != case and self._kept[backend] < int(SHARE * self._searched[backend]):
            self._kept[backend] += 1
            return case
        return less

    def _known_in(self, case: AnyCase, causes: Iterable[KnownCause]) -> set[frozenset[str]]:
        """Return the words of each deadly failure of which a case has all features."""
        family, backend = family_of(case), case.backend
        of_entries = (
            family.table.current(each.features)
            for each in self._ledger
            if each.is_about(backend) and each.mode in {None, *case.modes}
        )
        of_causes = (
            frozenset(each.name for each in cause.clues if not each.memory)
            for cause in causes
            if cause.ablated and cause.fingerprint.kind in DEATHS and cause.fingerprint.backend == backend
        )
        own = family.ledger_words(case)
        return {words for words in (*of_entries, *of_causes, *self._learned[backend]) if words and words <= own}
