"""Known failures that a case can ignore, because they have no effect on later steps."""

from collections.abc import Collection, Iterable

from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.past import PastFailure
from attnfuzz.reference.validity import MOST_PAST

_KINDS = frozenset(
    {
        Kind.OUTPUT_MISMATCH,
        Kind.LSE_MISMATCH,
        Kind.EMPTY_ROW,
        Kind.NOT_FINITE,
        Kind.PADDING_LEAK,
        Kind.UNWRITTEN,
        Kind.WRITE_MISMATCH,
        Kind.STRAY_WRITE,
        Kind.CONTRACT_BROKEN,
    }
)
"""Kinds that a case can ignore: no step reads another's output, and wrong writes are corrected."""


def past_failures(fingerprints: Iterable[Fingerprint], backend: str) -> tuple[PastFailure, ...]:
    """Return the failures of `backend` with these fingerprints that a case can ignore: in order, and not too many."""
    found = {past_failure(each) for each in fingerprints if each.backend == backend and each.kind in _KINDS}
    return tuple(sorted(found)[:MOST_PAST])


def are_past(observations: Collection[Observation], past: Collection[PastFailure]) -> bool:
    """Return whether there are failures among the observations of a forward, and each of them is one of `past`."""
    failures = [each for each in observations if not each.gap]
    return bool(failures) and all(each.kind in _KINDS and past_failure(each) in past for each in failures)


def past_failure(failure: Fingerprint | Observation) -> PastFailure:
    """Return a failure in the form in which a case names it."""
    return PastFailure(failure.kind.value, failure.place, failure.kernel, failure.mode)
