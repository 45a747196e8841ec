"""The causes that a campaign knows, in the form that slices get."""

from collections.abc import Collection, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.reduce.ablation import CONTENTS, FEATURES, clues_in, feature_named, features_in
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.features.row import Feature


class KnownCause(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of the finding `name`: its smallest `case` fails as `fingerprint` and needs the features `needs`.

    If it is not `ablated`, some of its needs are unknown. `shown_as` are the fingerprints of all findings that have
    this cause, and `shown_with` the features that they need. `exceptions` are the types and lines of all exceptions
    from the backend's own code (`Observation.exception`): each has one cause.
    """

    name: str
    case: AnyCase
    fingerprint: Fingerprint
    needs: tuple[str, ...] = ()
    ablated: bool = True
    shown_as: tuple[Fingerprint, ...] = ()
    shown_with: tuple[tuple[str, ...], ...] = ()
    exceptions: frozenset[str] = frozenset()

    def also(self, other: "KnownCause") -> "KnownCause":
        """Return the cause with the failures of another one, which it explains."""
        return replace(
            self,
            shown_as=(*self.shown_as, *other.symptoms),
            shown_with=(*self.shown_with, other.needs, *other.shown_with),
            exceptions=self.exceptions | other.exceptions,
        )

    def may_show_in(self, case: AnyCase) -> bool:
        """Return whether a case has the clues that one of its findings needs."""
        own = features_in(case)
        return any(clues_among(needs) <= own for needs in (self.needs, *self.shown_with))

    @property
    def clues(self) -> frozenset[Feature]:
        """The features that it needs, except circumstances and shape, which differ between cases."""
        return clues_among(self.needs)

    def marks_in(self, case: AnyCase) -> frozenset[Feature] | None:
        """Return the features that mark its failures, as far as `case` has them, or None if it can't fail there.

        They are its clues and the shape that it needs; if its needs are unknown, all clues of its case. A case may lack
        marks that only make a failure of this kind visible, unless the cause has no others.
        """
        own = features_in(case)
        needs = filter(None, map(feature_named, self.needs))
        marks = frozenset(each for each in needs if each.clue or each.counts) if self.ablated else clues_in(self.case)
        others = marks - visible_with(self.fingerprint)
        return next((each for each in (marks, others or marks) if each <= own), None)

    @property
    def kernels(self) -> frozenset[str]:
        """The entry points in which it was seen."""
        return frozenset(each.kernel for each in self.symptoms)

    @property
    def symptoms(self) -> tuple[Fingerprint, ...]:
        """All of its known fingerprints."""
        return tuple(dict.fromkeys((self.fingerprint, *self.shown_as)))

    def shows_as(self, fingerprint: Fingerprint) -> bool:
        """Return whether one of its findings has this fingerprint. A fault matches at any place."""
        return fingerprint.anywhere in {each.anywhere for each in self.symptoms}


class KnownCauses:
    """The causes that a slice knows: the ones it was given, and the ones it has found since."""

    def __init__(self, causes: Iterable[KnownCause]) -> None:
        self._causes = {cause.name: cause for cause in causes}

    def __iter__(self) -> Iterator[KnownCause]:
        """Yield the causes with all of their findings so far."""
        yield from self._causes.values()

    def showing_as(self, fingerprint: Fingerprint) -> list[KnownCause]:
        """Return the causes that have a finding with this fingerprint."""
        return [cause for cause in self if cause.shows_as(fingerprint)]

    def add(self, found: KnownCause, *, cause: KnownCause | None) -> str:
        """Add a finding to the `cause` that explains it, or as a new cause. Returns the name of `cause`, or ""."""
        if cause is None:
            self._causes.setdefault(found.name, found)
            return ""
        self._causes[cause.name] = self._causes[cause.name].also(found)
        return cause.name


_WITHOUT_KEYS = (
    "empty KV",
    "fewer keys than queries",
    "mask",
    "mask with holes",
    "rows that a mask hides all keys from",
)

_VISIBLE_WITH: dict[Kind | str, Collection[str]] = {
    # Without sinks, the LSE of no keys is the same for every part of a row.
    Kind.EMPTY_ROW: (*_WITHOUT_KEYS, "sinks"),
    Kind.PADDING_LEAK: ("padding", "replay"),
    Kind.REPLAY_DIVERGED: ("padding", "replay", "relation"),
    Kind.NONDETERMINISTIC: ("relation",),
    Kind.METAMORPHIC_MISMATCH: ("relation",),
    "empty rows": (*_WITHOUT_KEYS, "sinks"),
    # They only have to be finite.
    "padded rows": ("padding", "replay", *(each.name for each in CONTENTS)),
    # One key has all the weight, whatever its logit.
    "out": ("several keys",),
}
"""Features without which a kind of failure, or a failure at a place, can't be seen, whatever its cause."""


def visible_with(fingerprint: Fingerprint) -> frozenset[Feature]:
    """Return the features that failures with this fingerprint need at least one of, whatever their cause."""
    names = (name for seen in (fingerprint.kind, fingerprint.place) for name in _VISIBLE_WITH.get(seen, ()))
    return frozenset(FEATURES[name] for name in names)


def clues_among(needs: Collection[str]) -> frozenset[Feature]:
    """Return the clues with these names, except names of other releases."""
    return frozenset(each for each in map(feature_named, needs) if each is not None and each.clue)
