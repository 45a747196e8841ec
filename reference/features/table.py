"""A table of features, and everything that follows from its rows: axes, properties, and the words of ledgers."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attnfuzz.reference.features.moments import moments_of
from attnfuzz.reference.features.row import Axis, Feature, FeatureRow, T, Violation

if TYPE_CHECKING:
    from attnfuzz.reference.capability import Capability

_Named = tuple[tuple[Axis[T], dict[str, str]], ...]


class FeatureTable:
    """The rows of the features of a family of cases.

    `axes` are the features of coverage by the name of their axis, those of steps first, and `features` the properties
    that can be taken away, by name. `words` are all features that a ledger may name: the properties, groups of them,
    and single values such as "mask=tree". `former` has the current word for each that older ledgers name.
    """

    def __init__(self, *rows: FeatureRow[Any], moments: Callable[[Any], Iterable[Any]] = moments_of) -> None:
        """Derive everything else from the rows. Axes of steps place the `moments` of a case."""
        self.rows = rows
        self._moments = moments
        self._steps = _named(row.axis for row in rows if row.of_steps)
        self._case = _named(row.axis for row in rows if not row.of_steps)
        self.axes: Mapping[str, tuple[str, ...]] = MappingProxyType(
            {axis.name: tuple(names.values()) for axis, names in (*self._steps, *self._case)}
        )
        self.features: Mapping[str, Feature] = MappingProxyType(
            {each.name: each for row in rows for each in row.removables}
        )
        groups: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            groups[row.group].update(each.name for each in row.removables if each.clue and not each.memory)
        self.groups: Mapping[str, frozenset[str]] = MappingProxyType(
            {name: frozenset(members) for name, members in groups.items() if members}
        )
        self.words = (*dict.fromkeys((*self.features, *self.groups, *chain(*self.axes.values()))),)
        self._refusals = tuple(row.refusal for row in rows if row.refusal is not None)
        self._rules = tuple(row.rule for row in rows if row.rule is not None)
        self.former: Mapping[str, str] = MappingProxyType({old: new for row in rows for old, new in row.formerly})

    def of_case(self, case: Any) -> list[str]:
        """Return the coverage features of the whole case, sorted."""
        return sorted(_placed(case, self._case))

    def of_steps(self, case: Any) -> set[frozenset[str]]:
        """Return the coverage features of each distinct step that runs."""
        return {frozenset(_placed(moment, self._steps)) for moment in self._moments(case)} if self._steps else set()

    def coverage_of(self, case: Any) -> frozenset[str]:
        """Return the coverage features, such as "mode=decode", of a case and of the steps that it runs."""
        return frozenset(chain(self.of_case(case), *self.of_steps(case)))

    def features_in(self, case: Any) -> frozenset[Feature]:
        """Return the properties that a case has and that can be taken away."""
        shown = self.coverage_of(case)
        return frozenset(each for each in self.features.values() if each.shown(case, shown))

    def violations(self, case: Any) -> Iterator[Violation]:
        """Yield the reasons why a case can't exist, with valid numbers, geometry and scales."""
        return filter(None, (rule(case) for rule in self._rules))

    def printed(self, case: Any, line: str) -> str:
        """Return the words for the features in a line of a printed case."""
        return ", ".join(filter(None, (row.words(case) for row in self.rows if row.line == line)))

    def why_not(self, can: "Capability", case: Any) -> str | None:
        """Return the first feature of a case that a backend does not support, as a noun phrase, or None."""
        return next(filter(None, (refusal(can, case) for refusal in self._refusals)), None)

    def optional(self, can: "Capability", *, asked: bool) -> list[str]:
        """Return the features for which a capability has to ask, and for which `can` asks, or does not."""
        found = [(name, present(can)) for name, present in (row.optional for row in self.rows if row.optional)]
        return list(dict.fromkeys(name for name, wants in found if wants is not None and bool(wants) is asked))

    def words_of(self, case: Any) -> frozenset[str]:
        """Return the words for the features of a case that a ledger may name."""
        names = frozenset(each.name for each in self.features_in(case))
        groups = (name for name, members in self.groups.items() if not members.isdisjoint(names))
        return self.coverage_of(case) | names | frozenset(groups)

    def properties_of(self, word: str) -> frozenset[Feature]:
        """Return the properties that a word of a ledger names: one, those of a group, or those that a value shows."""
        names = self.groups.get(word, {word})
        return frozenset(each for each in self.features.values() if each.name in names or word in each.shown_by)

    def current(self, words: Iterable[str]) -> frozenset[str]:
        """Return the current words for the features that an older ledger names."""
        return frozenset(self.former.get(word, word) for word in words)

    def filed_words(self, case: Any) -> frozenset[str]:
        """Return the words that the names of findings count."""
        shown = self.coverage_of(case)
        return frozenset(word for row in self.rows for word, values in row.filed if not shown.isdisjoint(values))


def _named(table: Iterable[Axis[T]]) -> _Named[T]:
    """Return each axis with its features by value. Computed once, so equal features are one string and compare fast."""
    return tuple((axis, dict(zip(axis.values, axis.features, strict=True))) for axis in table)


def _placed(subject: T, table: _Named[T]) -> list[str]:
    return [names[value] for axis, names in table for value in axis.place(subject)]
