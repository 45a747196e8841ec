"""The causes that a campaign knows, in the form that slices get."""

import hashlib
from collections.abc import Collection, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import as_file_name
from attnfuzz.harness.reduce.ablation import CONTENTS, FEATURES, SHAPE, clues_in, feature_named, features_in
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import WRONG, Fingerprint, fine
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.features.row import Feature
from attnfuzz.reference.mistake import Mistake

MOST_SHOWINGS = 8
"""Maximum number of further findings of a cause in a slice, all different in features, kind or place."""

TRIED = 3
"""Maximum number of such findings from which one failure is predicted."""


class Showing(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that shows a cause: its smallest case, which fails as `fingerprint` and needs the features `needs`.

    If it is not `ablated`, some of its needs are unknown.
    """

    case: AnyCase
    fingerprint: Fingerprint
    needs: tuple[str, ...] = ()
    ablated: bool = True
    mistakes: tuple[Mistake, ...] = ()
    exception: str = ""


class KnownCause(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of the finding `name`: its smallest `case` fails as `fingerprint` and needs the features `needs`.

    `shown_as` are the fingerprints of all findings that have this cause, `shown_with` the features that they need, and
    `mistakes` the mistakes that explain its case. `showings` are some of its other findings. `exceptions` are the types
    and lines of all exceptions from the backend's own code (`Observation.exception`): each has one cause.
    """

    name: str
    case: AnyCase
    fingerprint: Fingerprint
    needs: tuple[str, ...] = ()
    ablated: bool = True
    shown_as: tuple[Fingerprint, ...] = ()
    shown_with: tuple[tuple[str, ...], ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    showings: tuple[Showing, ...] = ()
    exceptions: frozenset[str] = frozenset()

    def seen_like(self, fingerprint: Fingerprint) -> "Iterator[KnownCause]":
        """Yield the cause with its own case, then with the cases of the findings that fail most like `fingerprint`.

        One bug may leave the rows without keys unwritten and the others wrong, and may be visible with any of several
        features.
        """
        yield self
        for each in self.showings_like((fingerprint,))[:TRIED]:
            yield self.by(each)

    def showings_like(self, fingerprints: Collection[Fingerprint]) -> list[Showing]:
        """Return the further findings, most similar to one of the fingerprints first."""
        return sorted(self.showings, key=lambda one: min(_unlike(one.fingerprint, each) for each in fingerprints))

    def by(self, showing: Showing) -> "KnownCause":
        """Return the cause represented by one of its findings."""
        return replace(
            self,
            case=showing.case,
            fingerprint=showing.fingerprint,
            needs=showing.needs,
            ablated=showing.ablated,
            mistakes=showing.mistakes,
        )

    def also_by(self, showing: Showing) -> "KnownCause":
        """Return the cause with one more finding."""
        return replace(
            self,
            shown_as=(*self.shown_as, showing.fingerprint),
            shown_with=(*self.shown_with, showing.needs),
            showings=several((*self.showings, showing), but=self),
            exceptions=self.exceptions.union(filter(None, (showing.exception,))),
        )

    def may_show_in(self, case: AnyCase) -> bool:
        """Return whether a case has the clues that one of its findings needs."""
        own = features_in(case)
        return any(clues_among(needs) <= own for needs in (self.needs, *self.shown_with))

    @property
    def clues(self) -> frozenset[Feature]:
        """The features that it needs, except circumstances, which differ between cases."""
        return clues_among(self.needs)

    @property
    def hints(self) -> frozenset[Feature]:
        """Its clues, or all clues of its case if it was not ablated."""
        return self.clues if self.ablated else clues_in(self.case)

    def marks_in(self, case: AnyCase) -> frozenset[Feature] | None:
        """Return the features that mark its failures, as far as `case` has them, or None if it can't fail there.

        They are its hints, or if it has none, the shape that it needs. A case may lack clues without which the kind of
        failure can't be seen: there it may fail in another way.
        """
        own = features_in(case)
        marks = self.hints or frozenset(FEATURES[name] for name in self.needs if name in FEATURES) & SHAPE
        seen = seen_with(self.fingerprint)
        lacking = frozenset(FEATURES[name] for name in _WITHOUT_KEYS) & seen
        if self.fingerprint.place == "out":
            # With one key, that key has all the weight, whatever its logit.
            seen |= {FEATURES["several keys"]}
        return next((each for each in (marks, marks - lacking, marks - seen) if each <= own), None)

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

    def add(self, showing: Showing, *, name: str, cause: KnownCause | None) -> str:
        """Add the finding `name` to `cause`, or make it a new cause. Returns the name of `cause`, or ""."""
        if cause is not None:
            self._causes[cause.name] = self._causes[cause.name].also_by(showing)
            return cause.name
        new = KnownCause(
            name=name,
            case=showing.case,
            fingerprint=showing.fingerprint,
            needs=showing.needs,
            ablated=showing.ablated,
            exceptions=frozenset(filter(None, (showing.exception,))),
        )
        self._causes.setdefault(name, new)
        return ""


def several(showings: Iterable[Showing], *, but: "Showing | KnownCause") -> tuple[Showing, ...]:
    """Return a few of the showings that differ from each other and from `but` in kind, place or clues.

    A showing whose clues only make its failure visible has no marks and predicts nothing.
    """
    first: dict[object, Showing] = {}
    for each in showings:
        clues = clues_among(each.needs)
        if not clues or clues - seen_with(each.fingerprint):
            first.setdefault(_way(each), each)
    first.pop(_way(but), None)
    return tuple(first.values())[:MOST_SHOWINGS]


def _way(showing: "Showing | KnownCause") -> tuple[Kind, str, frozenset[Feature]]:
    return showing.fingerprint.kind, showing.fingerprint.place, clues_among(showing.needs)


def _unlike(shown: Fingerprint, wanted: Fingerprint) -> int:
    """Return how much two fingerprints differ, with the highest weight on kind and place."""
    kind = shown.kind is not wanted.kind and not {shown.kind, wanted.kind} <= WRONG
    return (
        4 * kind + 4 * (shown.place != wanted.place) + 2 * (shown.kernel != wanted.kernel) + (shown.mode != wanted.mode)
    )


_WITHOUT_KEYS = (
    "empty KV",
    "fewer keys than queries",
    "mask",
    "mask with holes",
    "rows that a mask hides all keys from",
)

_SEEN_WITH: dict[Kind | str, Collection[str]] = {
    # Without sinks, the LSE of no keys is the same for every part of a row.
    Kind.EMPTY_ROW: (*_WITHOUT_KEYS, "sinks"),
    Kind.PADDING_LEAK: ("padding", "replay"),
    Kind.REPLAY_DIVERGED: ("padding", "replay", "relation"),
    Kind.NONDETERMINISTIC: ("relation",),
    Kind.METAMORPHIC_MISMATCH: ("relation",),
    "empty rows": (*_WITHOUT_KEYS, "sinks"),
    # They only have to be finite.
    "padded rows": ("padding", "replay", *(each.name for each in CONTENTS)),
}
"""Features without which a kind of failure, or a failure at a place, can't be seen, whatever its cause."""


def seen_with(fingerprint: Fingerprint) -> frozenset[Feature]:
    """Return the features that failures with this fingerprint need at least one of, whatever their cause."""
    names = (name for seen in (fingerprint.kind, fingerprint.place) for name in _SEEN_WITH.get(seen, ()))
    return frozenset(FEATURES[name] for name in names)


def clues_among(needs: Collection[str]) -> frozenset[Feature]:
    """Return the features with these names, except circumstances and names of other releases."""
    return frozenset(each for each in map(feature_named, needs) if each is not None and each.clue)


def finding_name(case: AnyCase, observation: Observation, *, apart: Collection[str] | None = None) -> str:
    """Return the name of a finding's folder, shared by all findings with the same fine fingerprint.

    If other findings have its fingerprint, it gets a separate name, made of the features `apart` that it needs and its
    place.
    """
    name = f"{as_file_name(case.backend)}-{observation.kind}-{fine(case, observation)}"
    if apart is None:
        return name
    parts = (Fingerprint.of(case.backend, observation).anywhere.place, *apart)
    return f"{name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:4]}"
