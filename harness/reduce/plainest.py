"""Removing the features that a failure does not need from its case, several at once."""

from collections.abc import Callable, Collection

from attnfuzz.harness.reduce.ablation import ablations, features_in
from attnfuzz.reference.case import Case
from attnfuzz.reference.features.row import Feature


def plainest(
    case: Case,
    fails: Callable[[Case], bool],
    *,
    allowed: Callable[[Case], bool],
    among: Collection[Feature],
) -> Case:
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


def leave_out(case: Case, features: Collection[Feature], allowed: Callable[[Case], bool]) -> Case:
    """Return the case without those of the features that can be removed, one after another."""
    for feature in sorted(features):
        ablation = next(ablations(case, allowed=allowed, among={feature}), None)
        if ablation is not None:
            case = ablation.variants[0]
    return case
