"""Deciding whether two causes are one mistake that is visible with either of two sibling features.

A kernel that assumes consecutive pages is wrong if pages are shuffled, and if the KV cache has a gap between them: each
smallest case needs one of the two. Features of one group of `SIBLINGS` may be marks of one mistake, if all other
features that the two cases need are the same. This is tested by an exchange: each case passes without its own siblings,
and fails as before with the other's in their place.

Two mistakes that need a sibling each, and nothing else, pass this test too. If the cases share no other needed feature,
the siblings also have to cancel each other: with the same number for both scales, the case passes. Two factors of the
logits have to give the same error in each other's place.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from msgspec.structs import replace

from attnfuzz.harness.reduce.ablation import CLUES, CONTENTS, FEATURES, SHAPE, ablations, reseeded
from attnfuzz.harness.reduce.plainest import leave_out
from attnfuzz.harness.search.kinds import same_error
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.features.row import Feature

_SCALES = ("K scale", "V scale")

_FACTORS = ("softmax scale", "softmax scale of 0 or below", "K scale", "K scale of 0 or below")

SIBLINGS: tuple[frozenset[Feature], ...] = tuple(
    frozenset(FEATURES[name] for name in group)
    for group in (
        _SCALES,
        _FACTORS,
        ("page order", "NHD layout", "KV view", "other group", "several KV heads", "offsets beyond 2^31"),
        ("table tail", "table slack", "table gap"),
        ("NaN behind the last key", "NaN in free pages"),
        ("scales per head", "scales per token", "swizzled scales"),
    )
)
"""Groups of features in which one mistake may be visible.

The groups are scales, factors of the logits, the place of a key, the table, and memory that belongs to no key. Forms of
arguments are compared by `misread`.
"""

_PARTS = ("geometry", "pages", "views", "scales")

Allowed = Callable[[Any], bool]


def siblings_of(needs: Collection[str], other: Collection[str]) -> frozenset[Feature]:
    """Return the group that contains all clues by which the needs of two causes differ, or an empty set.

    They may differ in the shape that they need: a key has another place if there are several pages, or several heads.
    """
    ours, theirs = _known(needs), _known(other)
    for group in SIBLINGS:
        counted = CLUES - CONTENTS - group
        if ours & group and theirs & group and ours & group != theirs & group and ours & counted == theirs & counted:
            return group
    return frozenset()


def same_with_siblings(cause: KnownCause, other: KnownCause, run: Callable[[Any], Verdict], allowed: Allowed) -> bool:
    """Run the exchange of siblings between the smallest cases of two causes. False if they have none."""
    group = siblings_of(cause.needs, other.needs)
    if not group or (cause.kernels.isdisjoint(other.kernels) and cause.case.backend != other.case.backend):
        return False
    if cause.fingerprint.place != other.fingerprint.place:
        return False
    test = _Exchange(group, run, allowed)
    if not (test.shows(cause, other) and test.shows(other, cause)):
        return False
    if group == _named(_FACTORS):
        return test.moves(cause) and test.moves(other)
    return bool((_known(cause.needs) & _known(other.needs)) - group) or test.cancels(cause)


def _named(names: Collection[str]) -> frozenset[Feature]:
    return frozenset(FEATURES[name] for name in names)


def _known(needs: Collection[str]) -> frozenset[Feature]:
    return frozenset(FEATURES[name] for name in needs if name in FEATURES) & (CLUES | SHAPE)


class _Exchange:
    """Runs that exchange the features of `group` between cases."""

    def __init__(self, group: frozenset[Feature], run: Callable[[Any], Verdict], allowed: Allowed) -> None:
        self._group, self._run, self._allowed = group, run, allowed

    def shows(self, cause: KnownCause, other: KnownCause) -> bool:
        """Return whether a cause's case passes without its siblings, and fails as before with those of the other."""
        plain = self._without(cause.case)
        # It may fail in another way: known causes of all cases do.
        if plain is None or self._run(plain).unsupported is not None or self._fails(plain, cause.fingerprint):
            return False
        given = _given(plain, other.case, self._without(other.case))
        return given is not None and self._fails(given, cause.fingerprint)

    def cancels(self, cause: KnownCause) -> bool:
        """Return whether the case passes with the same number for both scales."""
        if not self._group <= _named(_SCALES):
            return False
        scales = _of_attention(cause).scales
        changed = scales.k if scales.k != 1 else scales.v
        both = cause.case.having(scales=replace(scales, k=changed, v=changed))
        if not self._can_run(both) or self._run(both).unsupported is not None:
            return False
        return not self._fails(both, cause.fingerprint)

    def moves(self, cause: KnownCause) -> bool:
        """Return whether the case has the same error with each factor of the logits in the other's place."""
        scales = _of_attention(cause).scales
        exchanged = cause.case.having(scales=replace(scales, softmax=scales.k, k=scales.softmax))
        before, after = (
            cause.fingerprint.among(self._run(each).failures) if self._can_run(each) else None
            for each in (cause.case, exchanged)
        )
        return before is not None and same_error(before, after)

    def _fails(self, case: AnyCase, fingerprint: Fingerprint) -> bool:
        if not self._can_run(case):
            return False
        return any(fingerprint.wrong_among(self._run(each).failures) for each in reseeded(case))

    def _can_run(self, case: AnyCase) -> bool:
        return possible(case) and self._allowed(case)

    def _without(self, case: AnyCase) -> AnyCase | None:
        """Return the case without all features of the group, or None if that can't be run."""
        left = leave_out(case, self._group, self._allowed)
        return None if any(ablations(left, allowed=self._allowed, among=self._group)) else left


def _of_attention(cause: KnownCause) -> Case:
    assert isinstance(cause.case, Case), "the siblings are features of attention"
    return cause.case


def _given(plain: AnyCase, donor: AnyCase, without: AnyCase | None) -> AnyCase | None:
    """Return `plain` with the fields that the siblings change in `donor`, or None if steps differ."""
    if not (isinstance(donor, Case) and isinstance(without, Case) and isinstance(plain, Case)):
        return None
    if (donor.steps, donor.relation) != (without.steps, without.relation):
        return None
    changes: dict[str, Any] = {name: getattr(donor, name) for name in _differing(donor, without, set(_PARTS))}
    for part in _PARTS:
        own, lacking = getattr(donor, part), getattr(without, part)
        fields = {name: getattr(own, name) for name in _differing(own, lacking, ())}
        changes |= {part: replace(getattr(plain, part), **fields)} if fields else {}
    return replace(plain, **changes)


def _differing(one: Any, other: Any, left_out: Collection[str]) -> Iterator[str]:
    for name in one.__struct_fields__:
        if name not in left_out and getattr(one, name) != getattr(other, name):
            yield name
