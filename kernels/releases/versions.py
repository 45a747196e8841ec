"""Rows of the tables of adaptations: ranges of versions, and the modules that are stubbed in them."""

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import Version


@dataclass(frozen=True)
class VersionRange:
    """The versions from `since` on and before `before`, which is None if the newest known version is in the range."""

    since: Version
    before: Version | None = None

    def __contains__(self, version: Version) -> bool:
        return self.since <= version and (self.before is None or version < self.before)


def span(since: str, before: str | None = None) -> VersionRange:
    """Make a range between versions given as text."""
    return VersionRange(Version(since), Version(before) if before else None)


@dataclass(frozen=True)
class Stubbed:
    """A stubbed module, and the line that imports it (below a release's package, in the first version of the range)."""

    module: str
    versions: VersionRange
    source: str


def stubbed_in(version: Version, rows: Iterable[Stubbed]) -> tuple[str, ...]:
    """List the modules that some rows stub in a version."""
    return tuple(each.module for each in rows if version in each.versions)
