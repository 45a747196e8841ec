"""The coverage of one backend's case space: reached, unreached and impossible pairs; also as a map."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

from markupsafe import Markup

from attnfuzz.harness.family import families, family_with
from attnfuzz.harness.report.svg import CHARACTER, Picture
from attnfuzz.harness.verdict.wording import count
from attnfuzz.strategies.coverage import ATTENTION_SPACE, CaseSpace, Pair

Block = tuple[str, str]
"""Two axes, in the order of a space."""

_CELL, _GAP = 5, 3
_LABELS = 118
_NAMED = 6
"""Unreached pairs named in a block's tooltip."""


@dataclass(frozen=True)
class Coverage:
    """Pairs of features of `backend`: reached, unreached, impossible with a reason; reached only if `unknown`.

    `space` has the features of its family.
    """

    backend: str
    reached: frozenset[Pair]
    unreached: frozenset[Pair]
    impossible: Mapping[Pair, str]
    unknown: bool = False
    space: CaseSpace = ATTENTION_SPACE

    @classmethod
    def of(cls, backend: str, capability: Any | None, pairs: Collection[Pair]) -> "Coverage":
        """Make the coverage of a backend whose cases had these `pairs`. Features of another version are left out.

        The capability is the one in the campaign's log, None if there is none: a backend named in a foreign log may be
        a file, which must not be imported here.
        """
        space = _like(pairs) if capability is None else family_with(capability).space
        reached = space.known(pairs)
        if capability is None:
            return cls(backend, reached, frozenset(), {}, unknown=True, space=space)
        barred = {pair: reason for pair, reason in space.impossible(capability).items() if pair not in reached}
        return cls(backend, reached, space.possible_pairs(capability) - reached, barred, space=space)

    @property
    def possible(self) -> int:
        """The number of pairs known to be possible."""
        return len(self.reached) + len(self.unreached)

    @property
    def share(self) -> float:
        """The share of the possible pairs that were reached."""
        return len(self.reached) / max(self.possible, 1)

    def unreached_by_block(self) -> list[tuple[Block, list[Pair]]]:
        """Group the unreached pairs by block, most first."""
        return sorted(self.by_block(self.unreached).items(), key=lambda item: (-len(item[1]), item[0]))

    def reasons(self) -> list[tuple[str, int]]:
        """Count the pairs that each reason makes impossible, most first."""
        return sorted(Counter(self.impossible.values()).items(), key=lambda item: (-item[1], item[0]))

    def varied(self) -> Mapping[str, tuple[str, ...]]:
        """Return the features of each axis on which the backend has several; all axes if nothing is known of it."""
        if self.unknown:
            return self.space.axes
        occurring = {feature for pair in (*self.reached, *self.unreached) for feature in pair}
        axes = self.space.axes.items()
        return {axis: features for axis, features in axes if len(occurring.intersection(features)) > 1}

    def by_block(self, pairs: Iterable[Pair]) -> dict[Block, list[Pair]]:
        """Group some pairs by their axes, both in order."""
        axes, blocks = self._axes, defaultdict[tuple[int, int], list[Pair]](list)
        for pair in pairs:
            one, other = axes[pair[0]], axes[pair[1]]
            blocks[(one, other) if one < other else (other, one)].append(pair)
        names = tuple(self.space.axes)
        return {(names[one], names[other]): sorted(blocks[one, other]) for one, other in sorted(blocks)}

    @cached_property
    def _axes(self) -> dict[str, int]:
        """The number of each feature's axis."""
        return {each: place for place, features in enumerate(self.space.axes.values()) for each in features}

    @cached_property
    def map(self) -> Markup | None:
        """The map of the pairs, drawn once; None if none is reached."""
        return heat_map(self) if self.reached else None


def _like(pairs: Collection[Pair]) -> CaseSpace:
    """Return the space that knows most of some pairs, of which nothing else is known: attention's, of none."""
    return max((each.space for each in families()), key=lambda space: len(space.known(pairs)))


def heat_map(coverage: Coverage) -> Markup:
    """Draw the lower triangle of the pairs of features, one path per block: one per cell would take megabytes.

    Axes that the backend has one value of are left out.
    """
    varied = coverage.varied()
    begins = _begins(varied)
    ends = {axis: begins[features[-1]] + _CELL for axis, features in varied.items()}
    size = max(ends.values(), default=0)
    label = (
        f"Pairs of features of {coverage.backend}: {len(coverage.reached):,} reached, {len(coverage.unreached):,} not, "
        f"{len(coverage.impossible):,} impossible"
    )
    picture = Picture(_LABELS + size + 60, label, minimum=760)
    picture.height = size + 4
    for axis, features in varied.items():
        middle = (begins[features[0]] + ends[axis]) / 2 + 3
        name = axis if len(axis) <= 17 else f"{axis[:16]}."
        picture.text(_LABELS - 6 - len(name) * CHARACTER * 9 / 11, middle, name, "axis")
        picture.text(_LABELS + begins[features[0]] + 3, middle, name, "axis dim")
    for (block, status, title), pairs in _alike(coverage).items():
        if not varied.keys() >= set(block):
            continue
        words = f"{block[0]} and {block[1]}: {title}"
        picture.add("path", f"pairs {status}", title=words, d=_cells(pairs, begins))
    return picture.markup()


def _begins(varied: Mapping[str, tuple[str, ...]]) -> dict[str, int]:
    """Return the offset of each feature's cells, from the left or the top."""
    begins, at = {}, 0
    for features in varied.values():
        for feature in features:
            begins[feature] = at
            at += _CELL
        at += _GAP
    return begins


def _alike(coverage: Coverage) -> Mapping[tuple[Block, str, str], list[Pair]]:
    """Group the pairs by block, status and tooltip."""
    groups: dict[tuple[Block, str, str], list[Pair]] = {}
    for block, pairs in coverage.by_block(coverage.reached).items():
        groups[block, "reached", f"{count(len(pairs), 'pair')} reached"] = pairs
    for block, pairs in coverage.by_block(coverage.unreached).items():
        groups[block, "unreached", f"not reached: {named(pairs, _NAMED)}"] = pairs
    for block, pairs in coverage.by_block(coverage.impossible).items():
        for reason in dict.fromkeys(coverage.impossible[pair] for pair in pairs):
            members = [pair for pair in pairs if coverage.impossible[pair] == reason]
            groups[block, "impossible", f"{count(len(members), 'pair')} impossible: {reason}"] = members
    return groups


def named(pairs: Sequence[Pair], most: int) -> str:
    """Format up to `most` pairs by the values of their features."""
    listed = [" & ".join(feature.partition("=")[2] for feature in pair) for pair in pairs[:most]]
    more = f", and {len(pairs) - most:,} more" if len(pairs) > most else ""
    return ", ".join(listed) + more


def _cells(pairs: Iterable[Pair], begins: Mapping[str, int]) -> str:
    """Draw the path of the cells of `pairs`; adjacent cells of a row are joined."""
    places = sorted((max(ends), min(ends)) for ends in ([begins[feature] for feature in pair] for pair in pairs))
    parts = []
    for y, row in groupby(places, key=lambda place: place[0]):
        # Cells of a run have the same distance from their numbers in the row.
        for _, run in groupby(enumerate(x for _, x in row), key=lambda item: item[1] - item[0] * _CELL):
            cells = [x for _, x in run]
            width = cells[-1] - cells[0] + _CELL
            parts.append(f"M{_LABELS + cells[0]} {y}h{width}v{_CELL}h-{width}z")
    return "".join(parts)
