"""Ranges of versions, for tables of what differs between releases."""

from dataclasses import dataclass

from packaging.version import Version


@dataclass(frozen=True)
class VersionRange:
    """The versions from `since` on and before `before`, which is None while the newest known one is in it."""

    since: Version
    before: Version | None = None

    def __contains__(self, version: Version) -> bool:
        return self.since <= version and (self.before is None or version < self.before)


def span(since: str, before: str | None = None) -> VersionRange:
    """A range, from the texts of its versions."""
    return VersionRange(Version(since), Version(before) if before else None)
