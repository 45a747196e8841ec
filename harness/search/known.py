"""The causes that a campaign knows, in the form that slices get."""

import hashlib
from collections.abc import Collection

import msgspec

from attnfuzz.harness.backends.registry import as_file_name
from attnfuzz.harness.reduce.ablation import FEATURES, SHAPE, Feature, features_in
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint, fine
from attnfuzz.reference.case import Case
from attnfuzz.reference.mistake import Mistake


class KnownCause(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of the finding `name`: `case` is its smallest, which fails as `fingerprint` and needs the features.

    `shown_as` are the fingerprints of all findings that have this cause, `mistakes` those that explain its case.
    """

    name: str
    case: Case
    fingerprint: Fingerprint
    needs: tuple[str, ...] = ()
    shown_as: tuple[Fingerprint, ...] = ()
    mistakes: tuple[Mistake, ...] = ()

    @property
    def clues(self) -> frozenset[Feature]:
        """The features that it needs, except circumstances, which differ between cases."""
        return clues_among(self.needs)

    @property
    def marks(self) -> frozenset[Feature]:
        """The features that mark its failures: its clues, or if it has none, the shape that it needs."""
        return self.clues or frozenset(FEATURES[name] for name in self.needs if name in FEATURES) & SHAPE

    @property
    def kernels(self) -> frozenset[str]:
        """The entry points in which it shows."""
        return frozenset(each.kernel for each in self.symptoms)

    @property
    def symptoms(self) -> tuple[Fingerprint, ...]:
        """All of its known fingerprints."""
        return tuple(dict.fromkeys((self.fingerprint, *self.shown_as)))

    def shows_as(self, fingerprint: Fingerprint) -> bool:
        """Whether one of its findings has this fingerprint; a fault matches at any place."""
        return fingerprint.anywhere in {each.anywhere for each in self.symptoms}

    def may_show_in(self, case: Case) -> bool:
        """Whether a case has the features that it needs."""
        return self.marks <= features_in(case)


def clues_among(needs: Collection[str]) -> frozenset[Feature]:
    """Return the features with these names, except circumstances and names of other releases."""
    return frozenset(FEATURES[name] for name in needs if name in FEATURES and FEATURES[name].clue)


def finding_name(case: Case, observation: Observation, apart: tuple[str, ...] = ()) -> str:
    """Return the name of a finding's folder, shared by all findings with the same fine fingerprint.

    `apart` are features that one of them needs and another does not.
    """
    name = f"{as_file_name(case.backend)}-{observation.kind}-{fine(case, observation)}"
    return f"{name}-{hashlib.sha256(chr(0).join(apart).encode()).hexdigest()[:4]}" if apart else name
