"""The pairs of features of one backend as a map: axes by axes, a cell for each pair."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby

from markupsafe import Markup

from attnfuzz.harness.report.coverage import Block, Coverage, block_of
from attnfuzz.harness.report.svg import CHARACTER, Picture
from attnfuzz.harness.verdict.wording import count
from attnfuzz.strategies.coverage import Pair, axes

_CELL, _GAP = 5, 3
_LABELS = 118
_NAMED = 6
"""Unreached pairs that a block names to those who point at it."""


def heat_map(coverage: Coverage) -> Markup:
    """The lower triangle of all pairs of features. Each path holds what is alike in one block of two axes.

    One element for each cell would take megabytes.
    """
    begins = _begins()
    ends = {axis: begins[features[-1]] + _CELL for axis, features in axes().items()}
    size = max(ends.values())
    picture = Picture(_LABELS + size + 60, _label(coverage), minimum=760)
    picture.height = size + 4
    for axis, features in axes().items():
        middle = (begins[features[0]] + ends[axis]) / 2 + 3
        name = axis if len(axis) <= 17 else f"{axis[:16]}."
        picture.text(_LABELS - 6 - len(name) * CHARACTER * 9 / 11, middle, name, "axis")
        picture.text(_LABELS + begins[features[0]] + 3, middle, name, "axis dim")
    for (block, status, title), pairs in _alike(coverage).items():
        words = f"{block[0]} and {block[1]}: {title}"
        picture.add("path", f"pairs {status}", title=words, d=_cells(pairs, begins))
    return picture.markup()


def _begins() -> dict[str, int]:
    """Where each feature's cells begin, from the left or the top."""
    begins, at = {}, 0
    for features in axes().values():
        for feature in features:
            begins[feature] = at
            at += _CELL
        at += _GAP
    return begins


def _alike(coverage: Coverage) -> Mapping[tuple[Block, str, str], list[Pair]]:
    """The pairs by block, status and what is to be said of them."""
    groups: dict[tuple[Block, str, str], list[Pair]] = {}
    for block, pairs in _by_block(coverage.reached).items():
        groups[block, "reached", f"{count(len(pairs), 'pair')} reached"] = pairs
    for block, pairs in _by_block(coverage.unreached).items():
        groups[block, "unreached", f"not reached: {named(pairs, _NAMED)}"] = pairs
    for block, pairs in _by_block(coverage.impossible).items():
        sizes = Counter(coverage.impossible[pair] for pair in pairs)
        for reason in sizes:
            members = [pair for pair in pairs if coverage.impossible[pair] == reason]
            groups[block, "impossible", f"{count(len(members), 'pair')} can't be: {reason}"] = members
    return groups


def named(pairs: Iterable[Pair], most: int) -> str:
    """Pairs by the values of their features, at most so many."""
    listed = [" & ".join(feature.partition("=")[2] for feature in pair) for pair in pairs]
    more = f", and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _by_block(pairs: Iterable[Pair]) -> dict[Block, list[Pair]]:
    blocks: dict[Block, list[Pair]] = defaultdict(list)
    for pair in sorted(pairs):
        blocks[block_of(pair)].append(pair)
    return blocks


def _cells(pairs: Iterable[Pair], begins: Mapping[str, int]) -> str:
    """The path of the cells of `pairs`, those that touch in a row as one."""
    places = sorted((max(ends), min(ends)) for ends in ([begins[feature] for feature in pair] for pair in pairs))
    parts = []
    for y, row in groupby(places, key=lambda place: place[0]):
        # Cells of a run have the same distance from their numbers in the row.
        for _, run in groupby(enumerate(x for _, x in row), key=lambda item: item[1] - item[0] * _CELL):
            cells = [x for _, x in run]
            width = cells[-1] - cells[0] + _CELL
            parts.append(f"M{_LABELS + cells[0]} {y}h{width}v{_CELL}h-{width}z")
    return "".join(parts)


def _label(coverage: Coverage) -> str:
    return (
        f"Pairs of features of {coverage.backend}: {len(coverage.reached):,} reached, {len(coverage.unreached):,} not, "
        f"{len(coverage.impossible):,} impossible"
    )
