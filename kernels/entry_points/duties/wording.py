"""Words that several duties share."""

from collections.abc import Sequence


def and_others(requests: Sequence[int]) -> str:
    """How many more requests than the first of these are concerned, to be put behind what is said of it."""
    if len(requests) == 1:
        return ""
    return f" (and so for {len(requests) - 1} more request{'' if len(requests) == 2 else 's'})"


def listed(names: Sequence[str]) -> str:
    """Such as "a, b and c"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
