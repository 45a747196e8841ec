"""What a search leans to: features of the case space that are drawn more often for a while."""

import msgspec


class Lean(msgspec.Struct, frozen=True):
    """Features (`attnfuzz.strategies.coverage`) to favour. Empty: draw as the strategies are by themselves.

    It stays the same for a whole slice of a search: Hypothesis shrinks what it drew, and must find the same strategy.
    """

    features: tuple[str, ...] = ()

    def values(self, axis: str) -> tuple[str, ...]:
        """The values of an axis whose features are favoured."""
        name = f"{axis}="
        return tuple(feature.removeprefix(name) for feature in self.features if feature.startswith(name))


NO_LEAN = Lean()
