"""The record of a finding: how it fails, and in which campaigns it did."""

from pathlib import Path
from typing import Literal

import msgspec

from attnfuzz.harness.findings.finding import CASE, earlier_case
from attnfuzz.harness.findings.sightings import Sighted, Sighting
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.reference import case_file, foreign
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.user_error import UserError

HISTORY = "finding.json"


class RecordError(UserError):
    """A folder holds no finding. The message is one line with the reason and the remedy."""


class History(Sighted, msgspec.Struct, frozen=True, kw_only=True):
    """The content of finding.json.

    `needs`, `ablated` and `cause` are as in `Finding`; older releases wrote none of them. `recurrence` is set if the
    failure does not always come back.
    """

    format: Literal["attnfuzz-finding"] = "attnfuzz-finding"
    version: Literal[1] = 1
    fingerprint: Fingerprint
    observation: Observation
    sightings: tuple[Sighting, ...]
    needs: tuple[str, ...] = ()
    ablated: bool = True
    cause: str = ""
    recurrence: Recurrence | None = None


class Record(History, frozen=True, kw_only=True):
    """A finding on file in the folder `path`: its history, its smallest known case, and the cases to run before that.

    `fingerprint` is that of the failure before shrinking.
    """

    name: str
    path: Path
    case: AnyCase
    before: tuple[AnyCase, ...] = ()


def read_record(path: Path) -> Record:
    """Read the finding in the folder `path`. Raises RecordError."""
    history = read_history(path)
    needed = 0 if history.recurrence is None else history.recurrence.history
    case, *before = (_case_at(path / name) for name in (CASE, *map(earlier_case, range(needed))))
    return Record(name=path.name, path=path, case=case, before=tuple(before), **msgspec.structs.asdict(history))


def _case_at(path: Path) -> AnyCase:
    try:
        case = case_file.load(path)
    except case_file.CaseFileError as error:
        raise RecordError(str(error)) from None
    if not case.searchable:
        raise RecordError(f"{path} is made of literal calls, which can be replayed but not searched: move it elsewhere")
    return case


def read_history(path: Path) -> History:
    """Read the history in the folder `path`, which has at least one failure. Raises RecordError."""
    file = path / HISTORY
    try:
        history = foreign.decode_json(foreign.read_bytes(file), History)
    except OSError as error:
        raise RecordError(
            f"cannot read {file}: {error.strerror}. Only folders written by campaigns belong here"
        ) from None
    except msgspec.DecodeError as error:
        raise RecordError(
            f"{file} is not the history of a finding ({foreign.reason(error)}): restore it, or remove the folder"
        ) from None
    if not any(sighting.failed for sighting in history.sightings):
        raise RecordError(f"{file} names no campaign in which it failed: restore it, or remove the folder")
    return history
