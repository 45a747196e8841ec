"""Failures that need several queries, or several requests, and those that show with one.

One bug is wrong in later rows of a request, another in later requests, and both need the same feature, such as a mask.
Where both show, each explains the other's failures. But a cause that needs several queries predicts that a failure
passes with one; and a cause that shows with one predicts that a failure does not need several.
"""

from collections.abc import Callable, Iterator
from typing import Final

from attnfuzz.harness.reduce.ablation import FEATURES, Feature, features_in
from attnfuzz.harness.search.by_memory import depends_on_memory
from attnfuzz.harness.search.known import KnownCause, seen_with
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.reference.case import Case, Mode

_QUERIES: Final = FEATURES["several queries"]
_REQUESTS: Final = FEATURES["several requests"]
_OTHERWISE: Final = frozenset(FEATURES[name] for name in ("empty KV", "fewer keys than queries", "late device"))


def counts_differ(pinned: Pinned[Case], cause: KnownCause, without: Callable[[Feature], list[Case]]) -> bool:
    """Whether a pinned failure needs several queries or requests and the cause does not, or the other way round.

    `without` gives variants of the failing case without one of these. Unknown needs do not differ.
    """
    if not cause.needs:
        return False
    case = pinned.first
    ours, its = features_in(case), features_in(cause.case)
    for count in _counts(pinned, cause):
        if count.name in cause.needs:
            if count not in ours:
                return True
            if any(pinned.observation(each) is not None for each in without(count)):
                return True
        elif count in ours and count not in its:
            verdicts = [pinned.judged(each) for each in without(count)]
            passed = [each is not None and pinned.fingerprint.wrong_among(each.failures) is None for each in verdicts]
            if passed and all(passed):
                return True
    return False


def _counts(pinned: Pinned[Case], cause: KnownCause) -> Iterator[Feature]:
    """The counts that say something about both: a decode has one query, and padding counts as further requests.

    A row without keys may come about by several queries or by none of the keys, and a race may do anything. A stray
    read may meet the keys of other requests in the one case, and unused memory in the other.
    """
    cases = (pinned.first, cause.case)
    if cause.clues & _OTHERWISE:
        return
    if not any(step.mode is Mode.DECODE for case in cases for step in case.steps):
        yield _QUERIES
    seen = seen_with(pinned.fingerprint) | seen_with(cause.fingerprint)
    padded = any(step.padded for case in cases for step in case.steps)
    if not (padded or seen or depends_on_memory(pinned, pinned.first, pinned.fingerprint)):
        yield _REQUESTS
