"""What is on file of a finding: how it fails, and in which campaigns it did."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from attnfuzz.harness.findings.finding import CASE, earlier_case
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.reference import case_file, foreign
from attnfuzz.reference.case import Case
from attnfuzz.reference.user_error import UserError

HISTORY = "finding.json"


class RecordError(UserError):
    """A folder that holds no finding; the message is one line that says what is wrong and what to do."""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What one campaign saw of a finding, at `time` in seconds since the epoch: whether it failed, and on what."""

    campaign: str
    time: float
    failed: bool
    environment: dict[str, str]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """What finding.json holds. `sightings` come in the order of the campaigns, at most one for each.

    `needs` and `cause` are as in `Finding`; older releases wrote neither. `recurrence` is how often the failure comes
    back, if it does not always.
    """

    format: Literal["attnfuzz-finding"] = "attnfuzz-finding"
    version: Literal[1] = 1
    fingerprint: Fingerprint
    observation: Observation
    sightings: tuple[Sighting, ...]
    needs: tuple[str, ...] = ()
    cause: str = ""
    recurrence: Recurrence | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A finding on file in the folder `path`: the smallest case that is known, how it failed, and its history.

    `fingerprint` is what the failure was before it was shrunk. `needs` and `cause` are as in `Finding`. `recurrence` is
    how often it comes back, if it does not always, and `before` the cases that are to run before its own.
    """

    name: str
    path: Path
    case: Case
    fingerprint: Fingerprint
    observation: Observation
    sightings: tuple[Sighting, ...]
    needs: tuple[str, ...] = ()
    cause: str = ""
    recurrence: Recurrence | None = None
    before: tuple[Case, ...] = ()

    @property
    def state(self) -> State:
        """Its state in the last campaign that ran it."""
        return state_after(self.sightings)

    @property
    def first_seen(self) -> Sighting:
        """The first time that it failed."""
        return next(sighting for sighting in self.sightings if sighting.failed)

    @property
    def last_seen(self) -> Sighting:
        """The last time that it failed."""
        return next(sighting for sighting in reversed(self.sightings) if sighting.failed)


def state_after(sightings: Sequence[Sighting]) -> State:
    """The state of a finding in the last campaign of `sightings`, by those before it."""
    *before, last = sightings
    if not last.failed:
        return State.FIXED
    if not before:
        return State.NEW
    return State.OPEN if before[-1].failed else State.RETURNED


def with_sighting(sightings: Sequence[Sighting], sighting: Sighting) -> tuple[Sighting, ...]:
    """`sightings`, and what the present campaign saw; if it saw the finding before, one failure is enough to fail.

    Of many campaigns in a row that saw the same on the same, the first and the last stay: years of nights fit.
    """
    others = [each for each in sightings if each.campaign != sighting.campaign]
    own = [each for each in sightings if each.campaign == sighting.campaign]
    latest = msgspec.structs.replace(sighting, failed=sighting.failed or any(each.failed for each in own))
    if len(others) > 1 and _same(others[-2], others[-1]) and _same(others[-1], latest):
        del others[-1]
    return (*others, latest)


def _same(a: Sighting, b: Sighting) -> bool:
    return (a.failed, a.environment) == (b.failed, b.environment)


def read_record(path: Path) -> Record:
    """The finding in the folder `path`. Raises RecordError."""
    history = read_history(path)
    needed = 0 if history.recurrence is None else history.recurrence.history
    case, *before = (_case_at(path / name) for name in (CASE, *map(earlier_case, range(needed))))
    return Record(
        name=path.name,
        path=path,
        case=case,
        fingerprint=history.fingerprint,
        observation=history.observation,
        sightings=history.sightings,
        needs=history.needs,
        cause=history.cause,
        recurrence=history.recurrence,
        before=tuple(before),
    )


def _case_at(path: Path) -> Case:
    try:
        case = case_file.load(path)
    except case_file.CaseFileError as error:
        raise RecordError(str(error)) from None
    if not isinstance(case, Case):
        raise RecordError(f"{path} is made of literal calls, which are replayed and not searched: move it away")
    return case


def read_history(path: Path) -> History:
    """The history in the folder `path`, which has a failure in it. Raises RecordError."""
    file = path / HISTORY
    try:
        history = foreign.decode_json(foreign.read_bytes(file), History)
    except OSError as error:
        raise RecordError(
            f"cannot read {file}: {error.strerror}. Only folders that campaigns wrote belong here"
        ) from None
    except msgspec.DecodeError as error:
        raise RecordError(
            f"{file} is no finding's history ({foreign.reason(error)}): restore it, or remove the folder"
        ) from None
    if not any(sighting.failed for sighting in history.sightings):
        raise RecordError(f"{file} names no campaign in which it failed: restore it, or remove the folder")
    return history
