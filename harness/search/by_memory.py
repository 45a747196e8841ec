"""Separating failures that depend on memory that must not matter from errors that do not.

One bug computes wrong numbers almost everywhere; another reads stray memory or leaves a NaN. Each case of the first
also fails like the second where that is visible, and each case of the second like the first, so both look like one
cause. But the error of the first is the same whatever unused memory contains, and that of the second is not.
"""

from typing import Any, Final

from attnfuzz.harness.family import family_of
from attnfuzz.harness.reduce.ablation import FEATURES, reseeded
from attnfuzz.harness.search.kinds import same_error
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.verdict.failures import FAULTS
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Outputs

OF_OTHERS: Final = frozenset(
    FEATURES[name]
    for name in ("several requests", "several KV heads", "several pages", "partly filled page", "full last page")
)
"""Shapes in which a stray read may hit the keys of others, which do not depend on unused memory."""


def depends_on_memory(pinned: Pinned[Any], case: AnyCase, fingerprint: Fingerprint) -> bool:
    """Return whether this failure is a fault, or no failure of its kind and place occurs with other memory contents."""
    if fingerprint.kind in FAULTS:
        return True
    verdict = pinned.judged(family_of(case).on_other_memory(case))
    return verdict is not None and fingerprint.among(verdict.failures) is None


def same_on_other_memory(pinned: Pinned[Any], case: AnyCase, fingerprint: Fingerprint) -> bool:
    """Return whether a case has a wrong number, and the same one with other memory contents."""
    verdicts = (pinned.judged(case), pinned.judged(family_of(case).on_other_memory(case)))
    one, other = (None if each is None else fingerprint.among(each.failures) for each in verdicts)
    return one is not None and one.margin is not None and same_error(one, other)


def needs_nan_in_outputs(pinned: Pinned[Any], case: AnyCase, fingerprint: Fingerprint) -> bool:
    """Return whether a case passes with each of a few seeds if its outputs hold numbers before, instead of NaN.

    A kernel that multiplies old contents of the outputs by zero passes; one that leaves rows unwritten is still wrong.
    """
    stale = (each.having(outputs=Outputs.STALE) for each in reseeded(case))
    verdicts = map(pinned.judged, stale)
    return all(each is not None and fingerprint.wrong_among(each.failures) is None for each in verdicts)
