"""What a campaign reached of the case space of one backend, what it did not, and what nobody can."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from attnfuzz.reference.capability import Capability
from attnfuzz.strategies.coverage import Pair, axes, axis_of, impossible, possible_pairs

Block = tuple[str, str]
"""Two axes, in the order of `axes()`."""


@dataclass(frozen=True)
class Coverage:
    """Pairs of features of `backend`: each is reached, unreached or impossible; the latter with its reason.

    Where it is `unknown` what the backend can, nothing is unreached or impossible.
    """

    backend: str
    reached: frozenset[Pair]
    unreached: frozenset[Pair]
    impossible: Mapping[Pair, str]
    unknown: bool = False

    @classmethod
    def of(cls, backend: str, capability: Capability | None, pairs: Collection[Pair]) -> "Coverage":
        """The coverage of a backend whose cases had these `pairs`. Features of another version are left out.

        The capability is what its campaign knew of it, None if nothing: a backend that is named in somebody else's log
        may be a file, which must not be imported here.
        """
        features = {feature for members in axes().values() for feature in members}
        reached = frozenset(pair for pair in pairs if features.issuperset(pair))
        if capability is None:
            return cls(backend, reached, frozenset(), {}, unknown=True)
        barred = {pair: reason for pair, reason in impossible(capability).items() if pair not in reached}
        return cls(backend, reached, possible_pairs(capability) - reached, barred)

    @property
    def possible(self) -> int:
        """How many pairs can be reached, as far as is known."""
        return len(self.reached) + len(self.unreached)

    @property
    def share(self) -> float:
        """The share of the possible pairs that was reached."""
        return len(self.reached) / max(self.possible, 1)

    def unreached_by_block(self) -> list[tuple[Block, list[Pair]]]:
        """The unreached pairs of each two axes that have some, most first."""
        blocks: dict[Block, list[Pair]] = defaultdict(list)
        for pair in sorted(self.unreached):
            blocks[block_of(pair)].append(pair)
        return sorted(blocks.items(), key=lambda item: (-len(item[1]), item[0]))

    def reasons(self) -> list[tuple[str, int]]:
        """Why pairs are impossible, and how many for that reason, most first."""
        return sorted(Counter(self.impossible.values()).items(), key=lambda item: (-item[1], item[0]))


def block_of(pair: Pair) -> Block:
    """The axes of a pair, in the order of `axes()`."""
    one, other = map(axis_of, pair)
    return (one, other) if _ORDER[one] < _ORDER[other] else (other, one)


_ORDER = {axis: place for place, axis in enumerate(axes())}
