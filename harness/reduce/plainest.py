"""Removing the features that a failure does not need from its case, several at once."""

from collections.abc import Callable, Collection
from typing import TypeVar

from attnfuzz.harness.family import family_of
from attnfuzz.harness.reduce.ablation import ablations, features_in, unusual_in
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.features.row import Feature

C = TypeVar("C", bound=AnyCase)

_SEVERAL = 2


def plainest(
    case: C,
    fails: Callable[[C], bool],
    *,
    allowed: Callable[[C], bool],
    among: Collection[Feature],
) -> C:
    """Return `case`, which must fail, without as many features `among` the given ones as it fails without.

    All are removed at once, then halves of the rest, since each run that fails may cost a worker. A failure that needs
    one of n features takes about log2(n) failing runs, not n - 1.
    """
    groups = [sorted(features_in(case).intersection(among))]
    while groups:
        group = groups.pop()
        variant = leave_out(case, group, allowed)
        if variant == case:
            continue
        if fails(variant):
            case = variant
        elif len(group) > 1:
            half = len(group) // 2
            groups += (group[half:], group[:half])
    return case


def leave_out(case: C, features: Collection[Feature], allowed: Callable[[C], bool]) -> C:
    """Return the case without those of the features that can be removed, one after another.

    Sinks can't be left out while they are passed in 16 bits: a feature goes with one that depends on it.
    """
    for feature in sorted(features):
        ablation = next(ablations(case, allowed=allowed, among={feature}), None)
        less = _with_dependent(case, feature, allowed) if ablation is None else ablation.variants[0]
        case = less or case
    return case


def _with_dependent(case: C, feature: Feature, allowed: Callable[[C], bool]) -> C | None:
    """Return the case without a feature and without an unusual one that is impossible without it, or None."""
    own = features_in(case)
    impossible = [each for each in feature.removal(case) if feature in own and not possible(each)]
    without_both = (
        less
        for each in impossible
        for other in sorted(unusual_in(case) & features_in(each) - {feature})
        for less in other.removal(each)
        if possible(less) and features_in(less).isdisjoint({feature, other}) and allowed(less)
    )
    return next(without_both, None)


def removable_together(
    case: C,
    fails: Callable[[C], bool],
    *,
    allowed: Callable[[C], bool],
    among: Collection[Feature],
) -> frozenset[Feature]:
    """Return features without several of which at once `case` still fails, so that its failure needs none of them.

    All are left out at once, then halves of those that are left: a failure that needs none of n features takes one
    failing run, not n, and each of them may cost a worker. Single features are not tried.
    """
    found: set[Feature] = set()
    groups = [sorted(features_in(case).intersection(among))]
    while groups:
        group = groups.pop()
        if len(group) < _SEVERAL:
            continue
        variant = leave_out(case, group, allowed)
        gone = set(group) - features_in(variant)
        if gone and fails(variant):
            found |= gone
        else:
            half = len(group) // 2
            groups += (group[half:], group[:half])
    return frozenset(found)


def without_one(
    case: C, words: Collection[str], allowed: Callable[[C], bool], *, turn: int
) -> tuple[C, frozenset[str]]:
    """Return the case without one of the features that these words of a ledger name, and the names of those removed.

    The case and no names if it does not have them all, or if none of them can be removed. `turn` rotates the choice.
    """
    family, named = family_of(case), sorted(words)
    if not family.ledger_words(case).issuperset(words):
        return case, frozenset()
    first = turn % max(len(named), 1)
    for word in (*named[first:], *named[:first]):
        members = family.table.properties_of(word) & features_in(case)
        less = leave_out(case, members, allowed)
        if word not in family.ledger_words(less):
            return less, frozenset(each.name for each in members)
    return case, frozenset()
