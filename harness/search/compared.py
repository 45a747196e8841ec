"""Comparing two causes: they are one if one of them explains the other."""

from collections.abc import Callable, Iterable
from typing import Any

from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import CausePair, SameCauses
from attnfuzz.harness.search.misread import one_misreading
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.predictions import Allowed, attribute_case
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
    same = SameCauses(name=pair.other.name, cause=pair.cause.name)
    if pair.cause.exceptions & pair.other.exceptions:
        return same
    for cause, other in ((pair.cause, pair.other), (pair.other, pair.cause)):
        verdict = run(other.case)
        if other.fingerprint.among(verdict.failures) is not None:
            pinned = pin(other.fingerprint, other.case, verdict)
            beside = [each for each in known if each.name != other.name]
            needed = other.clues if other.ablated else frozenset()
            if attribute_case(pinned, (cause,), allowed, needed=needed, beside=beside, share=1)[0] is not None:
                return SameCauses(name=other.name, cause=cause.name)
    return same if one_misreading(pair.cause, pair.other, run, allowed) else None
