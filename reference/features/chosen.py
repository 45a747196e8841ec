"""Features that every case of a backend has, or none: `Capability.always` and `never`, `fuzz --only` and `--without`.

They are named by the words of reports and ledgers: a property such as "window", a group, or a value such as
"mask=tree".
"""

import difflib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from attnfuzz.reference.case import Case
from attnfuzz.reference.features.row import FeatureRow
from attnfuzz.reference.features.table import FeatureTable

if TYPE_CHECKING:
    from attnfuzz.reference.capability import Capability

WORDS_PAGE = "docs/reference/features.md"
"""The page with all words."""


def known_words(table: FeatureTable, words: Iterable[str]) -> tuple[str, ...]:
    """Return the current words for these. Raises ValueError for an unknown one, with a similar one."""
    known = (*table.words, *table.former)
    for word in words:
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the words are in {WORDS_PAGE}"
            raise ValueError(f"unknown feature {word!r}: {hint}")
    return tuple(dict.fromkeys(table.former.get(word, word) for word in words))


def shown_by(table: FeatureTable, word: str) -> frozenset[str]:
    """Return the features of coverage by which a case shows a word: empty for one that shows in other ways alone."""
    if any(word in features for features in table.axes.values()):
        return frozenset((word,))
    return frozenset().union(*(each.shown_by for each in table.properties_of(word)))


def lacking(table: FeatureTable, case: Case, always: Iterable[str]) -> str | None:
    """Return the first word of `always` that a case does not have, as a noun phrase, or None."""
    if not always:
        return None
    words = table.words_of(case)
    return next((f"cases without {word}" for word in always if word not in words), None)


def excluded(table: FeatureTable, case: Case, never: Iterable[str]) -> str | None:
    """Return the first word of `never` that a case has, as a noun phrase, or None."""
    if not never:
        return None
    words = table.words_of(case)
    return next((f"cases with {word}" for word in never if word in words), None)


def impossible_features(table: FeatureTable, always: Iterable[str], never: Iterable[str]) -> frozenset[str]:
    """Return the features of coverage that no case has because of these words: all are sure, but some may be left."""
    found = {feature for word in never for feature in shown_by(table, word)}
    for word in always:
        shown = shown_by(table, word)
        rows = [row for row in table.rows if not shown.isdisjoint(row.axis.features)]
        if len(rows) == 1 and not any(each.counts for each in table.properties_of(word) if each.name == word):
            found |= _others(rows[0], shown)
    return frozenset(found)


def _others(row: FeatureRow[Case], shown: frozenset[str]) -> frozenset[str]:
    """Return the features of a row that no case has which always shows some of `shown`."""
    if not row.of_steps:
        return frozenset(row.axis.features if row.axis.single else row.axis.features[:1]) - shown
    # Without a feature of the geometry, no step has it; with one, steps may show it in several ways.
    of_geometry = all(field.startswith("geometry.") for field in row.fields)
    return frozenset(row.axis.features[:1]) - shown if of_geometry else frozenset()


def contradictions(table: FeatureTable, can: "Capability") -> Iterator[str]:
    """Yield the reasons why no case can have all words of `always` and none of `never`, as far as single rows tell."""
    for word in can.always:
        shown = shown_by(table, word)
        rows = [row for row in table.rows if not shown.isdisjoint(row.axis.features)]
        if rows and not any(shown & _supported(row, can) for row in rows):
            yield f"{word}: {rows[0].lack}"
    left_out = impossible_features(table, (), can.never)
    for row in table.rows:
        if row.axis.total and not _supported(row, can) - left_out:
            yield f"without {', '.join(can.never)}, no {row.name} is left"


def _supported(row: FeatureRow[Case], can: "Capability") -> frozenset[str]:
    values = row.axis.values if row.supported is None else row.supported(can)
    return frozenset(map(row.axis.feature, values))
