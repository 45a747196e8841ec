"""Looking a finding up by its name, or by a part of it."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from attnfuzz.harness.cli.exits import BadInput

_MOST_LISTED = 10


class HasName(Protocol):
    """What has a name."""

    @property
    def name(self) -> str:
        """The name."""
        ...


Found = TypeVar("Found", bound=HasName)


def find_by_name(named: Sequence[Found], name: str, where: str) -> Found:
    """The one of this name, or the only one whose name has it in it. Raises BadInput, which lists what is `where`."""
    found = [each for each in named if each.name == name] or [each for each in named if name in each.name]
    if len(found) == 1:
        return found[0]
    known = [each.name for each in found or named]
    shown = ", ".join(known[:_MOST_LISTED]) or "none"
    more = f", and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    which = "several findings with" if found else "no finding with"
    raise BadInput(f"{where} has {which} {name!r} in its name: there is {shown}{more}")
