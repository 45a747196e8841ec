"""Ablation: finding the features that a failure needs, by running its case without each of them.

A `Feature` is a removable special property of a case: sinks, a window, padding, a replayed graph. The table of features
(`attnfuzz.reference.features`) has them, each with its removal. `ablations` yields
the variants of a case without each feature that it has; `needed` runs them, and returns the features without which the
case passes. `attnfuzz.harness.reduce.transfers` does the opposite: it yields the same case in places where it may fail
as well.

A feature is needed if no variant without it fails. A variant may lack the feature or have it at a harmless value, such
as a window that is longer than all keys. A feature that a backend requires does not count as needed, because there is
no variant to run, or the backend refuses all of them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

from attnfuzz.harness.family import families, family_of
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.features.calls import FORMS, LIVES
from attnfuzz.reference.features.row import Feature

C = TypeVar("C", bound=AnyCase)

FRESH_SEEDS = 2
"""Number of value seeds for rerunning a passing variant, since an error near its bound may pass by chance."""


class Ablation(NamedTuple, Generic[C]):
    """A feature of a case, and the variants of the case without it."""

    feature: Feature
    variants: tuple[C, ...]


def features_in(case: AnyCase) -> frozenset[Feature]:
    """Return the features that a case has."""
    return family_of(case).table.features_in(case)


def clues_in(case: AnyCase) -> frozenset[Feature]:
    """Return the features of a case that point to a failure's cause."""
    return frozenset(each for each in features_in(case) if each.clue)


def unusual_in(case: AnyCase) -> frozenset[Feature]:
    """Return the clues in a case that a plain case does not have."""
    return frozenset(each for each in clues_in(case) if not (each.usual or each.memory))


def feature_named(name: str) -> Feature | None:
    """Return the feature of that name, of any family, or None."""
    return next((each.table.features[name] for each in families() if name in each.table.features), None)


def ablations(
    case: C, *, allowed: Callable[[C], bool] = lambda _: True, among: Collection[Feature] | None = None
) -> Iterator[Ablation[C]]:
    """Yield each feature of `case` with its possible, `allowed` variants without it, the plainest first.

    Features without such a variant are left out, and so are those not `among` the given ones (default: all). Those may
    be of another family: features are equal by name, and only the case's own can be removed from it.
    """
    for feature in sorted(each for each in features_in(case) if among is None or each in among):
        variants = tuple(_variants(case, feature, allowed))
        if variants:
            yield Ablation(feature, variants)


def needed(
    case: C,
    fails: Callable[[C], bool],
    *,
    allowed: Callable[[C], bool] = lambda _: True,
    among: Collection[Feature] | None = None,
    runs: Callable[[C], int] = lambda _: FRESH_SEEDS + 1,
    refused: Callable[[C], bool] = lambda _: False,
) -> frozenset[Feature]:
    """Return the features that the failure of `case` needs, `among` the given ones (default: all).

    `fails` runs a case and returns whether it fails alike, as `case` does. `runs` returns the number of value seeds
    with which a variant has to pass, or 0 if no feasible number is enough. `refused` returns whether the backend
    answered Unsupported to a variant that was run.
    """

    def passes(variant: C) -> bool:
        for again in reseeded(variant, runs(variant)):
            if fails(again):
                return False
            if refused(again):
                break
        return True

    return frozenset(
        feature
        for feature, variants in ablations(case, allowed=allowed, among=among)
        if all(map(runs, variants)) and all(map(passes, variants)) and not all(map(refused, variants))
    )


def reseeded(case: C, seeds: int = FRESH_SEEDS + 1) -> Iterator[C]:
    """Return the case with its own seed and those after it, `seeds` in total."""
    return map(case.reseeded, range(seeds))


def passes_if(needs: Collection[str]) -> list[str]:
    """Return a clause for each needed NaN in memory: the condition under which the case passes."""
    needed_ones = sorted(filter(None, map(feature_named, needs)))
    return [f"if {feature.memory} hold numbers" for feature in needed_ones if feature.memory]


def _variants(case: C, feature: Feature, allowed: Callable[[C], bool]) -> Iterator[C]:
    for variant in dict.fromkeys(feature.removal(case)):
        # Without a feature, a case may have no relation to run, or no step.
        if possible(variant) and feature not in features_in(variant) and allowed(variant):
            yield variant


FEATURES: Mapping[str, Feature] = TABLE.features
"""The features of attention and of writing the KV cache, by name."""

SHAPE: frozenset[Feature] = frozenset(each for each in FEATURES.values() if each.counts)
"""Features that are counts."""

CONTENTS: frozenset[Feature] = frozenset(each for each in FEATURES.values() if each.memory)
"""Clues that almost every case has: NaN in memory that must not matter."""

CLUES: frozenset[Feature] = frozenset(each for each in FEATURES.values() if each.clue)
"""Features that point to a failure's cause."""

TENSOR_FORMS: frozenset[Feature] = frozenset(FEATURES[form.value] for form in ArgumentForm if form.of_tensor)
"""Forms of tensors. A kernel that misreads one may fail in any way."""

ARGUMENTS: frozenset[Feature] = frozenset(each for row in (*FORMS, *LIVES) for each in row.removables) | frozenset(
    FEATURES[f"{factor} scale of 0 or below"] for factor in ("softmax", "K", "V")
)
"""Forms, edges and earlier uses of arguments, which are the same in all backends that take the argument."""
