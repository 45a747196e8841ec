"""The archive: findings of all campaigns in one home, filed once and tracked from night to night."""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from attnfuzz.harness.files.durable import is_folder, remove, set_aside, sync_folder, write_durably
from attnfuzz.harness.findings.finding import FIRST, REPORT, SCRIPT, Finding, with_script_words
from attnfuzz.harness.findings.record import (
    HISTORY,
    History,
    Record,
    RecordError,
    read_history,
    read_record,
)
from attnfuzz.harness.findings.sightings import Sighting, state_after, with_sighting
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.sanitizer_tool import REPORTED_BY
from attnfuzz.reference import foreign

ENVIRONMENT = "environment.json"
_DRAFT = ".draft-"
_REPLACED = ".replaced-"


class Archive:
    """The folders of findings and of unconfirmed failures, as seen and extended by one `campaign`.

    `environment` is the campaign's, `now` returns seconds since the epoch. Findings with the same name are the same, in
    any campaign. A coarse fingerprint may be shared with one on file: a failure was searched for only because the case
    on file passes, or failed elsewhere, and it needs other features. States follow from other campaigns' sightings, so
    a campaign that was killed between writing and reporting may do both again. Creating an archive tidies up after such
    a campaign, so only one may be in use at a time, which a home's lock ensures.
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
        """Return earlier campaigns' findings in `backends`, failing ones before fixed ones."""
        records, self.troubles = read_records(self._findings)
        past = []
        for record in records:
            # Sightings of this campaign, from before it was killed, are not past.
            seen = tuple(each for each in record.sightings if each.campaign != self._campaign)
            # Running a failure that was seen once can't refute it.
            seen_once = record.recurrence is not None and record.recurrence.seen_once
            # Its case passes without the tool.
            sanitized = record.observation.kind in REPORTED_BY
            if seen and record.case.backend in backends and not seen_once and not sanitized:
                past.append(msgspec.structs.replace(record, sightings=seen))
        return sorted(past, key=lambda record: (record.state is State.FIXED, record.name))

    def file(self, finding: Finding, fingerprint: Fingerprint, *, replaces: str = "") -> tuple[Path, State]:
        """Write `finding` into its folder, replacing its content; its history continues. Raises OSError.

        If it `replaces` the finding of that name, it takes over its first case and its history. Its state is NEW,
        RETURNED, or OPEN; also OPEN if its case on file passed in this campaign, since another case shows that it was
        never fixed.
        """
        path, history = self._write(self._findings, finding, fingerprint, replaces)
        if replaces not in {"", finding.name}:
            forget(self._findings / replaces)
        return path, state_after(history.sightings)

    def add_script(self, name: str, script: str | None, obstacle: str = "") -> None:
        """Write the script of the finding `name` into its folder, and an `obstacle` into its report. Raises OSError."""
        path = self._findings / name
        # It may have been removed meanwhile.
        if not is_folder(path):
            return
        if script is not None:
            write_durably(path / SCRIPT, script.encode())
        report = path / REPORT
        before = report.read_text() if report.is_file() else ""
        after = with_script_words(before, obstacle, kept=script is not None)
        if after != before:
            write_durably(report, after.encode())

    def keep_unconfirmed(self, finding: Finding, fingerprint: Fingerprint) -> Path:
        """Write a failure that did not come back, as `file` does. Raises OSError."""
        return self._write(self._unconfirmed, finding, fingerprint)[0]

    def checked(self, name: str, *, fails: bool) -> State:
        """Record that an earlier finding `name` was run again, and return its state: OPEN, RETURNED or FIXED.

        If it has failed in this campaign, it is not FIXED. Raises OSError.
        """
        path = self._findings / name
        try:
            history = read_history(path)
        except RecordError:
            # The folder was removed meanwhile: go on.
            return State.OPEN if fails else State.FIXED
        sightings = with_sighting(history.sightings, self._sighting(failed=fails))
        write_durably(path / HISTORY, _pretty(msgspec.structs.replace(history, sightings=sightings)))
        return state_after(sightings)

    def explained(self, name: str, cause: str) -> None:
        """Record that the finding `name` has the cause of the finding `cause`. Raises OSError."""
        path = self._findings / name
        with contextlib.suppress(RecordError):
            history = msgspec.structs.replace(read_history(path), cause=cause)
            write_durably(path / HISTORY, _pretty(history))

    def _write(
        self, parent: Path, finding: Finding, fingerprint: Fingerprint, replaces: str = ""
    ) -> tuple[Path, History]:
        """Rewrite the finding's folder in `parent`. Returns its path and history."""
        path, old = parent / finding.name, parent / (replaces or finding.name)
        before: Sequence[Sighting] = ()
        for each in (path, old):
            with contextlib.suppress(RecordError):
                before = before or read_history(each).sightings
        history = History(
            fingerprint=fingerprint,
            observation=finding.observation,
            sightings=with_sighting(before, self._sighting(failed=True)),
            needs=finding.needs,
            ablated=finding.ablated,
            cause=finding.cause,
            recurrence=finding.recurrence,
        )
        files = finding.files | {ENVIRONMENT: _pretty(self._environment), HISTORY: _pretty(history)}
        if replaces:
            with contextlib.suppress(OSError):
                files[FIRST] = foreign.read_bytes(old / FIRST)
        _write_folder(path, files)
        return path, history

    def _sighting(self, *, failed: bool) -> Sighting:
        return Sighting(campaign=self._campaign, time=self._now(), failed=failed, environment=self._environment)


def read_records(findings: Path) -> tuple[list[Record], list[str]]:
    """Return the findings in a folder, by name, and a line for each folder without one."""
    records: list[Record] = []
    troubles: list[str] = []
    try:
        paths = sorted(path for path in findings.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return [], []
    except OSError as error:
        return [], [f"skipped all findings: cannot read {findings}: {error.strerror}"]
    for path in paths:
        if not is_folder(path):
            troubles.append(f"skipped a finding: {path} is not a folder. Only folders written by campaigns belong here")
            continue
        try:
            records.append(read_record(path))
        except RecordError as error:
            troubles.append(f"skipped a finding: {error}")
    return records, troubles


def forget(path: Path) -> None:
    """Remove the folder of a finding, so that the next sighting is a first one. Raises OSError."""
    # Renamed first, so that being killed midway leaves no partial finding.
    away = path.with_name(f"{_DRAFT}{path.name}")
    path.rename(away)
    sync_folder(path.parent)
    remove(away)


def _write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Create the folder `path` with `files`, replacing an existing one. On OSError, nothing has changed.

    Killed at any moment, it leaves the old or the new folder, the old one possibly under a name from which `_tidy`
    restores it.
    """
    draft = path.with_name(f"{_DRAFT}{path.name}")
    replaced = path.with_name(f"{_REPLACED}{path.name}")
    for each in (draft, replaced):
        remove(each)
    if not is_folder(path):
        # Not written by a campaign.
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
    """Remove drafts that a killed campaign left in `folder`, and restore replaced folders.

    Raises OSError for an unusable folder, before a night is spent on findings that can't be filed.
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
    """Restore the name of a replaced folder, unless a new one has it."""
    path = replaced.with_name(replaced.name.removeprefix(_REPLACED))
    if is_folder(path) or not is_folder(replaced):
        remove(replaced)
    else:
        set_aside(path)
        replaced.rename(path)


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
