"""Findings of a server: folders like those of `attnfuzz fuzz`, with a trace in place of a case."""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.files.durable import is_folder, write_durably
from attnfuzz.harness.findings.sightings import Sighted, Sighting, state_after, with_sighting
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.serve.hunt import Reran
from attnfuzz.harness.serve.judging import WRONG_ANSWERS, ServedFault
from attnfuzz.harness.serve.stages import Hunted
from attnfuzz.harness.serve.trace import RequestTrace
from attnfuzz.harness.verdict.recurrence import Runs
from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference.foreign import decode_json, read_bytes, reason

TRACE = "trace.json"
HISTORY = "finding.json"
REPORT = "report.txt"
SCRIPT = "repro.py"
SERVER_LOG = "server.log"


class ServeHistory(Sighted, msgspec.Struct, frozen=True, kw_only=True):
    """The content of finding.json: its trace failed in `times` of `runs`, 0 where that is not on record.

    `symptoms` counts the failures that it explains, by kind and place.
    """

    format: Literal["attnfuzz-server-finding"] = "attnfuzz-server-finding"
    version: Literal[1] = 1
    fault: ServedFault
    needs: tuple[str, ...]
    sightings: tuple[Sighting, ...]
    times: Runs = 0
    runs: Runs = 0
    symptoms: dict[str, Runs] = {}

    def __post_init__(self) -> None:
        """Refuse impossible counts."""
        if self.times > self.runs:
            raise ValueError(f"{self.times} of {self.runs} runs can't have failed")


class ServeRecord(ServeHistory, frozen=True, kw_only=True):
    """A finding on file, with its trace."""

    name: str
    path: Path
    trace: RequestTrace

    @property
    def cause(self) -> str:
        """The finding that represents its cause: none but itself, which is filed by needed features and oracle."""
        return ""

    @property
    def headline(self) -> str:
        """Its kind, how often its trace failed, and its symptoms in other traces."""
        rate = f" ({self.times:,} of {count(self.runs, 'run')} failed)" if self.runs else ""
        seen = ", ".join(f"{words} {number:,}" for words, number in self.symptoms.items())
        several = sum(self.symptoms.values()) > 1
        return f"{self.fault.kind}{rate}" + (f"; symptoms: {seen}" if several else "")


def finding_name_of(fault: ServedFault, needs: tuple[str, ...]) -> str:
    """Name a finding's folder: the same for failures that are alike, and need the same features."""
    kind = "WrongAnswer" if fault.kind in WRONG_ANSWERS else fault.kind.value
    text = "/".join((kind, *needs))
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


@dataclass(kw_only=True)
class ServeArchive:
    """The folders of findings, as seen and extended by one `campaign`."""

    findings: Path
    unconfirmed: Path
    campaign: str
    environment: Mapping[str, str]
    now: Callable[[], float] = time.time

    def past(self) -> tuple[list[ServeRecord], list[str]]:
        """Read the findings of earlier campaigns. Returns them, and a line for each folder that holds none."""
        records, troubles = read_serve_records(self.findings)
        return [each for each in records if any(seen.campaign != self.campaign for seen in each.sightings)], troubles

    def file(self, name: str, hunted: Hunted, needs: tuple[str, ...], files: Mapping[str, bytes]) -> tuple[Path, State]:
        """Write a finding into its folder; its history continues. Raises OSError."""
        path = self.findings / name
        history = self._history(path, hunted.fault, needs, failed=True)
        self._write(path, files, replace(history, times=hunted.times, runs=hunted.runs))
        return path, state_after(history.sightings)

    def add_symptom(self, name: str, fault: ServedFault) -> None:
        """Count a failing trace that a finding explains. Raises OSError."""
        path = self.findings / name / HISTORY
        history = _history_in(path.parent)
        symptoms = history.symptoms | {fault.seen: history.symptoms.get(fault.seen, 0) + 1}
        write_durably(path, encoded(replace(history, symptoms=symptoms)))

    def keep(self, name: str, fault: ServedFault, files: Mapping[str, bytes]) -> Path:
        """Write a failure that did not come back. Raises OSError."""
        path = self.unconfirmed / name
        self._write(path, files, self._history(path, fault, (), failed=True))
        return path

    def checked(self, record: ServeRecord, reran: Reran) -> State:
        """Record that an earlier finding was run again. Raises OSError."""
        fails = reran.fault is not None
        history = self._history(record.path, record.fault, record.needs, failed=fails)
        # Runs of a finding that is fixed say nothing of its rate.
        times, runs = (record.times + 1, record.runs + reran.runs) if fails else (record.times, record.runs)
        write_durably(record.path / HISTORY, encoded(replace(history, times=times, runs=runs)))
        return state_after(history.sightings)

    def _history(self, path: Path, fault: ServedFault, needs: tuple[str, ...], *, failed: bool) -> ServeHistory:
        try:
            before, symptoms = (old := _history_in(path)).sightings, old.symptoms
        except (OSError, msgspec.DecodeError):
            before, symptoms = (), {}
        seen = Sighting(campaign=self.campaign, time=self.now(), failed=failed, environment=dict(self.environment))
        return ServeHistory(fault=fault, needs=needs, sightings=with_sighting(before, seen), symptoms=symptoms)

    def _write(self, path: Path, files: Mapping[str, bytes], history: ServeHistory) -> None:
        all_files = {**files, "environment.json": encoded(dict(self.environment))}
        for name, content in all_files.items():
            write_durably(path / name, content)
        # Last: a folder without a history is no finding.
        write_durably(path / HISTORY, encoded(history))


def read_serve_records(findings: Path) -> tuple[list[ServeRecord], list[str]]:
    """Read the findings in a folder. Returns them by name, and a line for each folder that holds none."""
    records: list[ServeRecord] = []
    troubles: list[str] = []
    folders = sorted(findings.iterdir()) if findings.is_dir() else []
    for path in folders:
        if path.name.startswith(".") or not is_folder(path):
            continue
        try:
            records.append(_read(path))
        except (OSError, msgspec.DecodeError, ValueError) as error:
            text = reason(error)
            troubles.append(f"skipped a finding: {path} ({text}). Only folders written by attnfuzz serve belong here")
    return records, troubles


def _history_in(path: Path) -> ServeHistory:
    return decode_json(read_bytes(path / HISTORY), ServeHistory)


def _read(path: Path) -> ServeRecord:
    history = _history_in(path)
    if not any(seen.failed for seen in history.sightings):
        raise ValueError("it never failed")
    trace = decode_json(read_bytes(path / TRACE), RequestTrace)
    return ServeRecord(name=path.name, path=path, trace=trace, **msgspec.structs.asdict(history))


def encoded(value: object) -> bytes:
    """Encode a trace or a history as its file."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"
