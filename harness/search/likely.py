"""Selecting the known causes that may explain a failure, and the features that would mark them. Runs nothing."""

from collections.abc import Collection, Iterable

from attnfuzz.harness.reduce.ablation import ARGUMENTS, CONTENTS, FEATURES, features_in
from attnfuzz.harness.search.known import KnownCause, Showing, seen_with
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.features.row import Feature

MOST_CAUSES = 12
"""Maximum number of known causes tried on one failure, the likeliest first."""

_COUNTS = frozenset({FEATURES["several requests"], FEATURES["several queries"]})
"""Shapes that determine which rows a bug makes wrong. If it needs them, it needs them in most of its cases."""

_PARTS = frozenset({FEATURES["several requests"], FEATURES["grouped heads"], FEATURES["several KV heads"]})
"""Parts of a batch that a bug may confuse."""

_BESIDE = frozenset({Kind.LSE_MISMATCH, Kind.EMPTY_ROW, Kind.NOT_FINITE})
"""Wrong values that may occur together with a wrong output."""

_ROWS_WITHOUT_KEYS = ("empty rows", "padded rows")
"""Places of failures in rows that see no keys."""


def likeliest(causes: Iterable[KnownCause], case: AnyCase, fingerprint: Fingerprint) -> list[KnownCause]:
    """Return the causes that are possible in this case, those in its backend and kernel first, then in one of these.

    Last come causes with the same form, edge or earlier use of an argument in other kernels.
    """

    def unlike(cause: KnownCause) -> int:
        backend = any(each.backend == fingerprint.backend for each in cause.symptoms)
        kernel = fingerprint.kernel in cause.kernels
        return 2 - backend - kernel

    def possible_in(cause: KnownCause) -> bool:
        marks = (each.marks_in(case) for each in cause.seen_like(fingerprint))
        return any(each is not None and (unlike(cause) < 2 or each & ARGUMENTS) for each in marks)

    return sorted(filter(possible_in, causes), key=unlike)[:MOST_CAUSES]


def marks_of(
    cause: KnownCause, case: AnyCase, fingerprint: Fingerprint, needed: Collection[Feature]
) -> frozenset[Feature] | None:
    """Return the features that mark a cause in a case with this fingerprint, or None if it can't explain the failure.

    A cause that needs several requests or queries can't explain a case with one.
    """
    marks = cause.marks_in(case)
    if marks is None or not counts_of(cause) - seen_with(cause.fingerprint) <= features_in(case):
        return None
    return marks if marks or may_lack_marks(cause, fingerprint, needed) else None


def may_lack_marks(
    cause: KnownCause,
    fingerprint: Fingerprint,
    needed: Collection[Feature],
    *,
    required: Collection[Feature] = frozenset(),
) -> bool:
    """Return whether a cause may explain a failure that needs the features `needed` without any mark.

    Without marks, it can't explain a failure that needs a clue, because it fails without; and if its clues only make it
    visible, it can't explain a failure in other rows. Clues that the backend requires of every case say nothing.
    """
    # NaN may be a number on other memory.
    needs_more = bool(set(needed) - CONTENTS - seen_with(fingerprint))
    seen_elsewhere = bool(cause.clues.difference(required)) and fingerprint.place not in _ROWS_WITHOUT_KEYS
    return not needs_more and not seen_elsewhere


def counts_of(cause: KnownCause) -> frozenset[Feature]:
    """Return "several requests" and "several queries", if a cause needs these features."""
    return _COUNTS & {FEATURES[name] for name in cause.needs if name in FEATURES}


def contradicted(cause: KnownCause, showing: Showing | KnownCause) -> bool:
    """Return whether the needs of a finding rule out this cause, even if its predictions come true.

    A case may fail in two ways because of two bugs. If the LSE is wrong with one head or request, and the output only
    with several, another bug makes the output wrong. A cause that needs nothing, and was seen in other rows, does not
    explain rows without keys that are wrong only with a sink. NaN depends on memory and is not evidence.
    """
    kind, kinds = showing.fingerprint.kind, {each.kind for each in cause.symptoms}
    if not showing.ablated or kind in kinds:
        return False
    if kind is Kind.EMPTY_ROW:
        return cause.ablated and not cause.needs and FEATURES["sinks"].name in showing.needs
    known = {name for needs in (cause.needs, *cause.shown_with) for name in needs}
    parts = {each.name for each in _PARTS}.intersection(showing.needs)
    of_numbers = kind is Kind.OUTPUT_MISMATCH and kinds <= _BESIDE and kinds != {Kind.NOT_FINITE}
    return of_numbers and not parts <= known
