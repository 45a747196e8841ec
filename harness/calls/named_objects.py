"""Names for the objects and graphs of a trace, which it does not keep alive."""

import weakref


class NamedObjects:
    """The objects that launches have made, and the graphs that have captured some, by their names in a trace."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[object], str]] = {}
        self._taken: set[str] = set()

    def fresh(self, kind: str) -> str:
        """Return an unused name, which begins with `kind`."""
        name = next(each for n in range(1, len(self._taken) + 2) if (each := f"{kind}_{n}") not in self._taken)
        self._taken.add(name)
        return name

    def bind(self, owner: object, name: str) -> None:
        """Give a name to an object."""
        self._known[id(owner)] = (weakref.ref(owner), name)

    def name_of(self, owner: object) -> str | None:
        """Return the name of an object, or None if it has none."""
        held, name = self._known.get(id(owner), (None, ""))
        # Another object may have the address of one that is gone.
        return name if held is not None and held() is owner else None

    def alive(self) -> bool:
        """Return whether any object with a name still exists."""
        return any(held() is not None for held, _ in self._known.values())

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()
        self._taken.clear()
