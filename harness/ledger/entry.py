"""Ledger entries: known failures that a user accepts, with the reason."""

from collections.abc import Collection, Iterable
from datetime import date
from typing import Final

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import origin
from attnfuzz.harness.family import family_of
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase

_MOST_NAMED: Final = 3


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A known failure. It matches failures that agree with every given field and have all of `features`.

    `finding` is the name of a finding's folder; the other fields are those of its fingerprint. If several backends or
    kinds are given, one of them has to agree. `issue` is a URL.
    """

    backend: str | tuple[str, ...]
    reason: str
    kind: Kind | tuple[Kind, ...] | None = None
    kernel: str | None = None
    mode: str | None = None
    place: str | None = None
    finding: str | None = None
    features: tuple[str, ...] = ()
    issue: str | None = None
    added: date | None = None

    @property
    def title(self) -> str:
        """The entry in half a line, with few of many backends."""
        narrower = (self.mode, self.kernel, self.place, self.finding, *self.features)
        first, others = self.backends[:_MOST_NAMED], len(self.backends) - _MOST_NAMED
        where = f"{', '.join(first)} and {others} more" if others > 0 else " or ".join(first)
        head = f"{' or '.join(self.kinds) or 'any failure'} in {where}"
        return ", ".join((head, *(each for each in narrower if each)))

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that fail."""
        return (self.backend,) if isinstance(self.backend, str) else self.backend

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of failure, or none for any kind."""
        return self.kind if isinstance(self.kind, tuple) else () if self.kind is None else (self.kind,)

    @property
    def text(self) -> str:
        """The reason, with the issue."""
        return f"{self.reason} ({self.issue})" if self.issue else self.reason

    def matches(self, fingerprint: Fingerprint, case: AnyCase, name: str | None) -> bool:
        """Return whether it matches this failure, filed as `name` if it is filed.

        An entry about a release also matches source trees that come from it.
        """
        if not self.is_about(fingerprint.backend):
            return False
        wanted = (
            (self.kernel, fingerprint.kernel),
            (self.mode, fingerprint.mode),
            (self.place, fingerprint.place),
            (self.finding, name),
        )
        agrees = all(own is None or own == its for own, its in wanted)
        if not agrees or (self.kinds and fingerprint.kind not in self.kinds):
            return False
        if not self.features:
            return True
        family = family_of(case)
        return family.ledger_words(case) >= family.table.current(self.features)

    def is_about(self, backend: str) -> bool:
        """Return whether it is about this backend, or about the one that a source tree comes from."""
        return backend in self.backends or origin(backend) in self.backends


def in_all_modes(known: Collection[Fingerprint], case: AnyCase, entries: Collection[Entry]) -> set[Fingerprint]:
    """Return the known failures, plus those in other modes of `case` that the entries match."""
    if not entries:
        return set(known)
    modes = set(case.modes)
    moved = (replace(each, mode=mode) for each in known if each.backend == case.backend for mode in modes)
    return {*known, *(each for each in moved if reason_of(entries, each, case) is not None)}


def reason_of(entries: Iterable[Entry], fingerprint: Fingerprint, case: AnyCase, name: str | None = None) -> str | None:
    """Return the text of the first entry that matches a failure, or None."""
    return next((entry.text for entry in entries if entry.matches(fingerprint, case, name)), None)
