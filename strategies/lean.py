"""Leans: features of the case space that a search draws more often for a while."""

import random
from collections import defaultdict
from collections.abc import Collection

import msgspec


class Lean(msgspec.Struct, frozen=True):
    """Features (`attnfuzz.strategies.coverage`) to favour. An empty lean leaves the strategies unchanged.

    It is fixed for a whole slice of a search, because Hypothesis can only shrink draws of an unchanged strategy.
    """

    features: tuple[str, ...] = ()

    def values(self, axis: str) -> tuple[str, ...]:
        """Return the favoured values of an axis."""
        name = f"{axis}="
        return tuple(feature.removeprefix(name) for feature in self.features if feature.startswith(name))


NO_LEAN = Lean()


# More would conflict: a case can't show all of them at once.
_PARTNERS = 4


def choose_lean(unreached: Collection[tuple[str, str]], reached: Collection[tuple[str, str]], seed: int) -> Lean:
    """Choose features to favour so that some of the `unreached` pairs are drawn. Deterministic.

    Pairs whose two features were both `reached` come first, since features that were drawn apart can be drawn together.
    Returns an empty lean if there are no reached or no unreached pairs.
    """
    if not reached or not unreached:
        return NO_LEAN
    known = {feature for both in reached for feature in both}
    missing: dict[str, list[str]] = defaultdict(list)
    for one, other in sorted(unreached):
        if one in known and other in known:
            missing[one].append(other)
            missing[other].append(one)
    source = random.Random(seed)
    if not missing:
        unknown = sorted({feature for both in unreached for feature in both} - known)
        return Lean(tuple(sorted(source.sample(unknown, min(_PARTNERS, len(unknown))))))
    candidates = sorted(missing)
    hub = source.choices(candidates, [len(missing[feature]) for feature in candidates])[0]
    partners = source.sample(missing[hub], min(_PARTNERS, len(missing[hub])))
    return Lean(tuple(sorted((hub, *partners))))
