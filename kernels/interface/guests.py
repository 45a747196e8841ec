"""The registry of guests: code that the core runs and does not import.

A guest offers objects by group and name. Those that ship with attnfuzz are listed in `attnfuzz.shipped`; those of
other packages are entry points.
"""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from attnfuzz.shipped import SHIPPED


@cache
def shipped(group: str) -> Mapping[str, Any]:
    """Import the guests of a group that ship with attnfuzz, in the order of their list."""
    return {point.name: point.load() for point in _listed(group)}


@cache
def offered(group: str) -> tuple[EntryPoint, ...]:
    """Return all guests of a group by name, unimported. None replaces one that ships with attnfuzz."""
    ours = _listed(group)
    names = {point.name for point in ours}
    return tuple(sorted((*ours, *(point for point in entry_points(group=group) if point.name not in names))))


def _listed(group: str) -> tuple[EntryPoint, ...]:
    return tuple(EntryPoint(name, value, group) for name, value in SHIPPED[group].items())
