"""The findings of all campaigns in one home: filed once, and followed from night to night."""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from attnfuzz.harness.files.durable import is_folder, remove, set_aside, sync_folder, write_durably
from attnfuzz.harness.findings.finding import Finding
from attnfuzz.harness.findings.record import (
    HISTORY,
    History,
    Record,
    RecordError,
    Sighting,
    read_history,
    read_record,
    state_after,
    with_sighting,
)
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.verdict.fingerprint import Fingerprint

ENVIRONMENT = "environment.json"
_DRAFT = ".draft-"
_REPLACED = ".replaced-"


class Archive:
    """The folders of findings and of unconfirmed failures, as one `campaign` sees and extends them.

    `environment` is what the campaign runs on, `now` gives seconds since the epoch. Findings with the same name are the
    same finding, in whatever campaign. One with another name is another, though its coarse fingerprint may be on file:
    it was searched for only because the case on file passes, or failed elsewhere, and other features make it fail.

    States follow from what other campaigns saw, so that a campaign that was killed between writing and telling may do
    both again. Making an archive tidies up after such a one, so only one may be in use at a time: a home's lock sees to
    that.
    """

    def __init__(
        self,
        findings: Path,
        unconfirmed: Path,
        *,
        campaign: str,
        environment: Mapping[str, str],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._findings = findings
        self._unconfirmed = unconfirmed
        self._campaign = campaign
        self._environment = dict(environment)
        self._now = now
        self.troubles: list[str] = []
        """A line for each folder that `past` left out because it holds no finding."""
        for folder in (findings, unconfirmed):
            _tidy(folder)

    def past(self, backends: Collection[str]) -> list[Record]:
        """What earlier campaigns found in `backends`, as they left it: what failed last before what passed."""
        records, self.troubles = read_records(self._findings)
        past = []
        for record in records:
            # What this campaign saw itself, before it was killed, is not past.
            seen = tuple(each for each in record.sightings if each.campaign != self._campaign)
            # What was seen once is not refuted by running it again: it stays as it is.
            seen_once = record.recurrence is not None and record.recurrence.seen_once
            if seen and record.case.backend in backends and not seen_once:
                past.append(msgspec.structs.replace(record, sightings=seen))
        return sorted(past, key=lambda record: (record.state is State.FIXED, record.name))

    def file(self, finding: Finding, fingerprint: Fingerprint) -> tuple[Path, State]:
        """Write `finding` into its folder, in place of what is there; its history goes on. Raises OSError.

        Its state is NEW, RETURNED, or OPEN; OPEN too where its case on file passed in this campaign, and another shows
        that it was never fixed.
        """
        path, history = self._write(self._findings, finding, fingerprint)
        return path, state_after(history.sightings)

    def keep_unconfirmed(self, finding: Finding, fingerprint: Fingerprint) -> Path:
        """Write a failure that did not come back into a folder of its own, as `file` does. Raises OSError."""
        return self._write(self._unconfirmed, finding, fingerprint)[0]

    def checked(self, name: str, *, fails: bool) -> State:
        """Note that the finding `name` of an earlier campaign was run again: it is OPEN, RETURNED or FIXED now.

        Once it failed in this campaign, it is not FIXED. Raises OSError.
        """
        path = self._findings / name
        try:
            history = read_history(path)
        except RecordError:
            # Somebody removed the folder meanwhile; a night is not given up for that.
            return State.OPEN if fails else State.FIXED
        sightings = with_sighting(history.sightings, self._sighting(failed=fails))
        write_durably(path / HISTORY, _pretty(msgspec.structs.replace(history, sightings=sightings)))
        return state_after(sightings)

    def explained(self, name: str, cause: str) -> None:
        """Note that the cause of the finding `name` is that of the finding `cause`. Raises OSError."""
        path = self._findings / name
        with contextlib.suppress(RecordError):
            history = msgspec.structs.replace(read_history(path), cause=cause)
            write_durably(path / HISTORY, _pretty(history))

    def _write(self, parent: Path, finding: Finding, fingerprint: Fingerprint) -> tuple[Path, History]:
        """Write the finding's folder in `parent` anew; returns its path and history."""
        path = parent / finding.name
        before: Sequence[Sighting] = ()
        with contextlib.suppress(RecordError):
            before = read_history(path).sightings
        history = History(
            fingerprint=fingerprint,
            observation=finding.observation,
            sightings=with_sighting(before, self._sighting(failed=True)),
            needs=finding.needs,
            cause=finding.cause,
            recurrence=finding.recurrence,
        )
        files = finding.files | {ENVIRONMENT: _pretty(self._environment), HISTORY: _pretty(history)}
        _write_folder(path, files)
        return path, history

    def _sighting(self, *, failed: bool) -> Sighting:
        return Sighting(campaign=self._campaign, time=self._now(), failed=failed, environment=self._environment)


def read_records(findings: Path) -> tuple[list[Record], list[str]]:
    """The findings in a folder, by name, and a line for each of its folders that holds none."""
    records: list[Record] = []
    troubles: list[str] = []
    try:
        paths = sorted(path for path in findings.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"left out all findings: cannot read {findings}: {error.strerror}"]
    for path in paths:
        if not is_folder(path):
            troubles.append(f"left out a finding: {path} is no folder. Only folders that campaigns wrote belong here")
            continue
        try:
            records.append(read_record(path))
        except RecordError as error:
            troubles.append(f"left out a finding: {error}")
    return records, troubles


def forget(path: Path) -> None:
    """Remove the folder of a finding: whoever finds it again, finds it for the first time. Raises OSError."""
    # Out of sight in one move, so that being killed midway leaves no finding with half of its files.
    away = path.with_name(f"{_DRAFT}{path.name}")
    path.rename(away)
    sync_folder(path.parent)
    remove(away)


def _write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make the folder `path` with `files`, in place of one that is there. Raises OSError, and changes nothing then.

    Killed at any moment, it leaves the old or the new folder; the old perhaps under a name from which `_tidy` brings it
    back.
    """
    draft = path.with_name(f"{_DRAFT}{path.name}")
    replaced = path.with_name(f"{_REPLACED}{path.name}")
    for each in (draft, replaced):
        remove(each)
    if not is_folder(path):
        # Nothing that a campaign wrote.
        set_aside(path)
    try:
        for name, content in files.items():
            write_durably(draft / name, content)
        if is_folder(path):
            path.rename(replaced)
        draft.rename(path)
    except OSError:
        remove(draft)
        _bring_back(replaced)
        raise
    sync_folder(path.parent)
    remove(replaced)


def _tidy(folder: Path) -> None:
    """Remove what a campaign that was killed left half done in `folder`, and bring back what it had moved away.

    Raises OSError for a folder that can't be one, before a night is spent on what could not be filed.
    """
    if not os.path.lexists(folder):
        return
    for path in list(folder.iterdir()):
        if path.name.startswith(_REPLACED):
            _bring_back(path)
        elif path.name.startswith(_DRAFT):
            remove(path)
        elif is_folder(path):
            for draft in path.glob(f"{_DRAFT}*"):
                remove(draft)


def _bring_back(replaced: Path) -> None:
    """Give a folder that was moved away its name again, unless a new one has it."""
    path = replaced.with_name(replaced.name.removeprefix(_REPLACED))
    if is_folder(path) or not is_folder(replaced):
        remove(replaced)
    else:
        set_aside(path)
        replaced.rename(path)


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
