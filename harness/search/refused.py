"""Features that a backend requires although its capability does not say so: it answers Unsupported without them.

A variant that was not judged says nothing about the feature that it lacks. Another feature of the case may be the
reason, if the backend takes it only together with the first one: without both, the case may be judged.
"""

from collections.abc import Callable, Iterator
from typing import Any

from attnfuzz.harness.reduce.ablation import Ablation, features_in, unusual_in
from attnfuzz.harness.reduce.plainest import leave_out
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.features.row import Feature

Allowed = Callable[[Any], bool]


def judged_without(
    pinned: Pinned[Any], ablation: Ablation[AnyCase], case: AnyCase, allowed: Allowed
) -> Iterator[AnyCase]:
    """Yield the variants of `case` without a feature that the backend does not refuse.

    If it refuses all, yield a variant that lacks one other clue too; if it refuses all of those, the feature can't be
    removed. Runs each variant with its own seed, as far as the budget lasts.
    """
    judged = False
    for variant in ablation.variants:
        if not _refuses(pinned, variant):
            judged = True
            yield variant
    if not judged:
        others = (each for each in _without_another(case, ablation.feature, allowed) if not _refuses(pinned, each))
        if (first := next(others, None)) is not None:
            yield first


def _refuses(pinned: Pinned[Any], case: AnyCase) -> bool:
    pinned.judged(case)
    return pinned.refused(case)


def _without_another(case: AnyCase, feature: Feature, allowed: Allowed) -> Iterator[AnyCase]:
    for other in sorted(unusual_in(case) - {feature}):
        variant = leave_out(leave_out(case, (other,), allowed), (feature,), allowed)
        if not features_in(variant) & {feature, other}:
            yield variant
