"""A finding: what a campaign knows of a confirmed failure, and the files that say so."""

from pathlib import Path

import msgspec

from attnfuzz.harness.search.known import finding_name
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case
from attnfuzz.reference.foreign import read_bytes

CASE = "case.json"
REPORT = "report.txt"
SCRIPT = "repro.py"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmed failure: `case` is the smallest that shows it, `first` as it was drawn.

    `report` is for people; `script` shows the failure without this project, None if no such script can be made.
    `needs` are the features that it needs, by name; `cause` is the finding that stands for its cause, "" if that is
    this one. It stands `apart` from another with the same kind, kernel and features, which needs others of them. One
    that comes and goes has a `recurrence`; `history` are the cases that are to run before it.
    """

    case: Case
    first: Case
    observation: Observation
    report: str
    script: str | None = None
    needs: tuple[str, ...] = ()
    cause: str = ""
    apart: bool = False
    recurrence: Recurrence | None = None
    history: tuple[Case, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name, the same for all findings that share a fine fingerprint and do not stand apart."""
        return finding_name(self.case, self.observation, self.needs if self.apart else ())

    @property
    def files(self) -> dict[str, bytes]:
        """What it takes to understand and repeat the failure, by file name."""
        files = {
            CASE: case_file.encode(self.case),
            "first.json": case_file.encode(self.first),
            REPORT: f"{self.report}\n".encode(),
        }
        files |= {earlier_case(number): case_file.encode(case) for number, case in enumerate(self.history)}
        return files if self.script is None else files | {SCRIPT: self.script.encode()}


def earlier_case(number: int) -> str:
    """The name of the file with a case that is to run before the finding's own."""
    return f"before-{number:03}.json"


def text_beside(folder: Path, name: str) -> str | None:
    """The text of a file in a finding's folder; None if it is missing, no regular file, too large, or a link.

    Texts are shown, and put into issues: a link would put anything of this machine there.
    """
    path = folder / name
    if path.is_symlink():
        return None
    try:
        return read_bytes(path).decode(errors="replace")
    except OSError:
        return None


def case_path(path: Path) -> Path:
    """The case file that `path` means: itself, or the one in a finding's folder."""
    return path / CASE if path.is_dir() else path
