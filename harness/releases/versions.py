"""Parse releases: 0.5.9, 0.5.9..0.5.14, 0.5.9..latest, or several of them."""

from collections.abc import Callable, Sequence

from packaging.version import Version

from attnfuzz.reference.user_error import UserError

LATEST = "latest"
_TO = ".."


class NoSuchVersions(UserError):
    """A text matches no versions; the message says how to write them."""


def versions_in(text: str, released: Callable[[], Sequence[Version]]) -> list[Version]:
    """Parse the versions in `text`, ascending, each once.

    `released` lists all versions in order. It is called for a range or the latest alone: versions named by themselves
    need no network. A range includes both ends, and no pre-releases except an end that is one. Raises NoSuchVersions,
    and the errors of `released`.
    """
    found: set[Version] = set()
    for part in text.split(","):
        first, to, last = part.strip().partition(_TO)
        if not to:
            found.add(_newest(released()) if first == LATEST else version_of(first))
            continue
        low = version_of(first)
        known = released()
        high = _newest(known) if last == LATEST else version_of(last)
        between = (version for version in known if low <= version <= high)
        within = [version for version in between if version in (low, high) or not version.is_prerelease]
        if not within:
            have = f"there are {known[0]} to {known[-1]}" if known else "there are none"
            raise NoSuchVersions(f"no version is in {part.strip()}: {have}; the older end comes first")
        found.update(within)
    return sorted(found)


def _newest(released: Sequence[Version]) -> Version:
    final = [version for version in released if not version.is_prerelease]
    if not final:
        raise NoSuchVersions("no version is released: name those that you have, like 0.5.9,0.5.11")
    return final[-1]


def version_of(text: str) -> Version:
    """Parse one version. Raises NoSuchVersions."""
    try:
        return Version(text)
    except ValueError:
        raise NoSuchVersions(f"{text!r} is not a version: write 0.5.9, 0.5.9..latest or 0.5.9,0.5.11") from None
