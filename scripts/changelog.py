"""Moves the changes under Unreleased in CHANGELOG.md into the section of a release.

python scripts/changelog.py VERSION DATE

A section of VERSION that exists, because its tag is not made yet, gets them at the top of its headings, and the new
date. Entries that begin with **Breaking:** go under "Breaking changes, and how to go on". Without a change under
Unreleased, and with a section of VERSION, the file stays as it is.
"""

import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"
BREAKING = "Breaking changes, and how to go on"
ORDER = (BREAKING, "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")
_MARK = "- **Breaking:** "
_UNRELEASED = "## [Unreleased]\n"


def cut(text: str, version: str, date: str) -> str:
    """Return the changelog with all changes under Unreleased in the section of `version`.

    Raise ValueError where there is no heading Unreleased, a change is under no heading or an unknown one, or nothing is
    left to release.
    """
    head, found, rest = text.partition(_UNRELEASED)
    if not found:
        raise ValueError(f"there is no {_UNRELEASED.strip()!r}")
    first, *released = re.split(r"(?m)^(?=## \[)", rest)
    loose, new = _by_heading(first)
    if loose.strip():
        raise ValueError(f"{loose.strip().splitlines()[0]!r} is under no heading")
    title = f"## [{version}] - "
    of_version = released.pop(0) if released and released[0].startswith(title) else ""
    if not new:
        if not of_version:
            raise ValueError(f"there is no change under Unreleased, and no section {title}DATE")
        return text
    above, old = _by_heading(of_version.partition("\n")[2])
    sections = (
        f"### {name}\n" + "\n".join(part.strip("\n") for part in (new.get(name), old.get(name)) if part) + "\n"
        for name in ORDER
        if name in new or name in old
    )
    section = f"{title}{date}\n" + above.rstrip("\n") + ("\n\n" if above.strip() else "") + "\n".join(sections)
    return head + _UNRELEASED + "\n" + section + "\n" + "".join(released)


def _by_heading(section: str) -> tuple[str, dict[str, str]]:
    """Return the text above the first heading, and the text under each, with breaking changes under their own."""
    above, *parts = re.split(r"(?m)^### ", section)
    named = {name: text for name, _, text in (part.partition("\n") for part in parts) if text.strip()}
    if unknown := [name for name in named if name not in ORDER]:
        raise ValueError(f"the heading {unknown[0]!r} is none of {', '.join(ORDER)}")
    entries = {name: re.split(r"(?m)^(?=- |#### )", text) for name, text in named.items()}
    kept = {name: "".join(each for each in all_of if not each.startswith(_MARK)) for name, all_of in entries.items()}
    broken = [each.replace(_MARK, "- ", 1) for all_of in entries.values() for each in all_of if each.startswith(_MARK)]
    if broken:
        kept[BREAKING] = kept.get(BREAKING, "").strip("\n") + "\n" + "".join(broken)
    return above, {name: text for name, text in kept.items() if text.strip()}


if __name__ == "__main__":
    try:
        CHANGELOG.write_text(cut(CHANGELOG.read_text(), *sys.argv[1:]))
    except ValueError as error:
        sys.exit(f"CHANGELOG.md: {error}")
