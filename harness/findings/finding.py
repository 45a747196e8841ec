"""Findings on disk: a folder for each, with all that it takes to understand and repeat the failure."""

import re
import shutil
import tempfile
from pathlib import Path

import msgspec

from attnfuzz.harness.failures import Observation
from attnfuzz.harness.fingerprint import fine
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmed failure: `case` is the smallest that shows it, `first` as it was drawn.

    `report` is for people; `script` shows the failure without this project, None if no such script can be made.
    """

    case: Case
    first: Case
    observation: Observation
    report: str
    script: str | None = None

    @property
    def name(self) -> str:
        """The folder's name, the same for all findings that share a fine fingerprint."""
        backend = re.sub(r"[^A-Za-z0-9_.@+-]+", "_", self.case.backend)
        return f"{backend}-{self.observation.kind}-{fine(self.case, self.observation)}"


def file_finding(finding: Finding, folder: Path) -> Path:
    """Write `finding` into its own folder below `folder`, all at once, and return where. Raises OSError.

    The folder holds case.json, first.json, report.txt and, if there is a script, repro.py. What an earlier campaign
    left there is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / finding.name
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=folder))
    try:
        draft.chmod(0o755)
        case_file.save(draft / CASE, finding.case)
        case_file.save(draft / "first.json", finding.first)
        (draft / "report.txt").write_text(f"{finding.report}\n")
        if finding.script is not None:
            (draft / "repro.py").write_text(finding.script)
        shutil.rmtree(path, ignore_errors=True)
        draft.rename(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path


CASE = "case.json"


def case_path(path: Path) -> Path:
    """The case file that `path` means: itself, or the one in a finding's folder."""
    return path / CASE if path.is_dir() else path
