"""The reported bugs: for each a case that failed before its fix and passes after it.

The entries are JSON files in bugs/. `backend_before` is the backend as it was when the
report was made, `backend_after` as it is now.
"""

from pathlib import Path

import msgspec

import attnfuzz
from attnfuzz.harness.failures import Kind
from attnfuzz.reference.case import Case
from attnfuzz.reference.validity import validate

FOLDER = Path(attnfuzz.__file__).parent / "bugs"


class BugFileError(ValueError):
    """An entry can't be read; the message says which, and why."""


class Bug(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One report: where it was made, what was seen, and the case that shows it.

    `kinds` are the failures that the report describes; seeing one of them before the fix counts as reproducing it.
    """

    name: str
    title: str
    source: str
    symptom: str
    kinds: tuple[Kind, ...]
    backend_before: str
    backend_after: str
    case: Case


def load_bugs(folder: Path = FOLDER) -> list[Bug]:
    """Every entry, by name. BugFileError if one is damaged, or if there is none: then none would fail."""
    bugs = [_load(path) for path in sorted(folder.glob("*.json"))]
    if not bugs:
        raise BugFileError(f"no bug entries in {folder}: reinstall attnfuzz")
    return bugs


def _load(path: Path) -> Bug:
    try:
        bug = msgspec.json.decode(path.read_bytes(), type=Bug)
        validate(bug.case)
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise BugFileError(f"bug entry {path.name} can't be read: {error}") from error
    if bug.name != path.stem:
        raise BugFileError(f"bug entry {path.name} is named {bug.name} inside")
    return bug
