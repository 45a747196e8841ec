"""All functions whose arguments have a known meaning."""

from collections.abc import Mapping
from functools import cache

from attnfuzz.kernels.interface.guests import shipped
from attnfuzz.kernels.meaning.entry_point import EntryPoint


@cache
def entry_points() -> Mapping[str, EntryPoint]:
    """Return the functions that guests know, by the names of their ops."""
    return {name: entry for known in shipped("attnfuzz.functions").values() for name, entry in known.items()}
