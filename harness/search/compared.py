"""Whether two causes are one: each one's predictions about the other are run."""

from collections.abc import Callable, Collection

from attnfuzz.harness.search.explained import Allowed, explain
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import CausePair, SameCauses
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.search.siblings import same_with_siblings
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case


def compared(
    pair: CausePair,
    run: Callable[[Case], Verdict],
    pin: Callable[[Fingerprint, Case, Verdict], Pinned[Case]],
    allowed: Allowed,
    known: Collection[KnownCause],
) -> SameCauses | None:
    """Return the message that two causes are one; None if they differ, or one of them no longer fails.

    Cases may fail as other `known` causes do, too.
    """
    for cause, other in ((pair.cause, pair.other), (pair.other, pair.cause)):
        verdict = run(other.case)
        if other.fingerprint.among(verdict.failures) is None:
            return None
        pinned = pin(other.fingerprint, other.case, verdict)
        beside = [each for each in known if each.name != other.name]
        if explain(pinned, (cause,), allowed, mistakes=other.mistakes, beside=beside).cause is not None:
            return SameCauses(name=other.name, cause=cause.name)
    if same_with_siblings(pair.cause, pair.other, run, allowed):
        return SameCauses(name=pair.other.name, cause=pair.cause.name)
    return None
