"""Comparing two causes: they are one if each one's predictions about the other hold when they are run."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice, product
from typing import Any

from attnfuzz.harness.search.explained import Allowed, explain
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.likely import contradicted
from attnfuzz.harness.search.messages import CausePair, SameCauses
from attnfuzz.harness.search.misread import one_misreading
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.siblings import same_with_siblings
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint


def compared(
    pair: CausePair,
    run: Callable[[Any], Verdict],
    pin: Callable[[Fingerprint, Any, Verdict], Pinned[Any]],
    allowed: Allowed,
    known: Iterable[KnownCause],
) -> SameCauses | None:
    """Return the message that two causes are one, or None if they differ or one of them no longer fails.

    Cases may also fail as other `known` causes do.
    """
    if pair.cause.exceptions & pair.other.exceptions:
        return SameCauses(name=pair.other.name, cause=pair.cause.name)
    ways = ((pair.cause, pair.other), (pair.other, pair.cause))
    apart = any(contradicted(cause, other) for cause, other in ways)
    for cause, other in () if apart else ways:
        for one in _likest(other, cause):
            verdict = run(one.case)
            if one.fingerprint.among(verdict.failures) is None:
                break
            pinned = pin(one.fingerprint, one.case, verdict)
            beside = [each for each in known if each.name != other.name]
            found = explain(pinned, (cause,), allowed, mistakes=one.mistakes, needed=one.clues, beside=beside, share=1)
            if found.cause is not None:
                return SameCauses(name=other.name, cause=cause.name)
    if one_misreading(pair.cause, pair.other, run, allowed):
        return SameCauses(name=pair.other.name, cause=pair.cause.name)
    both = product(_likest(pair.cause, pair.other), _likest(pair.other, pair.cause))
    if any(same_with_siblings(one, two, run, allowed) for one, two in both):
        return SameCauses(name=pair.other.name, cause=pair.cause.name)
    return None


def _likest(cause: KnownCause, other: KnownCause) -> Iterator[KnownCause]:
    """Yield a cause with its own case, and with those of its findings that are most similar to one of the other's."""
    yield cause
    alike = (cause.by(each) for each in cause.showings_like(other.symptoms))
    yield from islice((each for each in alike if each.case.backend == cause.case.backend), 2)
