"""Pinned cases: for each defect the smallest case that kills it, and its killer, as JSON."""

import textwrap
from pathlib import Path

import msgspec

from attnfuzz.harness.campaign.events import FindingFiled
from attnfuzz.harness.defects.search import killer
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference import case_file, foreign
from attnfuzz.reference.any_case import AnyCase


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """A case that kills a defect, its `killer`, and the kind of failure."""

    killed_by: str
    kind: Kind
    case: AnyCase


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A pin's file: the case in the format of `case_file`."""

    killed_by: str
    kind: Kind
    case: msgspec.Raw


def save_pin(folder: Path, defect: str, filed: FindingFiled) -> None:
    """Write the smallest case of `filed` to `folder`, in a file with the defect's name. Raises OSError."""
    seen = filed.observation
    case = textwrap.indent(case_file.encode(filed.case).decode(), "  ").strip()
    folder.mkdir(parents=True, exist_ok=True)
    _path(folder, defect).write_text(
        f'{{\n  "killed_by": "{killer(seen)}",\n  "kind": "{seen.kind}",\n  "case": {case}\n}}\n'
    )


def load_pin(folder: Path, defect: str) -> Pin | None:
    """Read the pin of a defect; None if there is none. Raises msgspec.DecodeError or CaseFileError if damaged."""
    path = _path(folder, defect)
    if not path.exists():
        return None
    content = foreign.decode_json(foreign.read_bytes(path), _File)
    return Pin(killed_by=content.killed_by, kind=content.kind, case=case_file.decode(bytes(content.case)))


def _path(folder: Path, defect: str) -> Path:
    return folder / f"{defect}.json"
