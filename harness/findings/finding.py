"""A finding: a confirmed failure, and its files."""

from pathlib import Path

import msgspec

from attnfuzz.harness.search.naming import finding_name
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_file import CaseFileError
from attnfuzz.reference.foreign import read_bytes

CASE = "case.json"
FIRST = "first.json"
REPORT = "report.txt"

SCRIPT = "repro.py"
"""Shows the failure without this project. It is made and run after the other files, if it can be made."""

TRACE = "trace.json"
"""The file that replaces the case in the folder of a finding of `attnfuzz serve`."""


_NOT_SHOWN, _NO_SCRIPT = "The script has not shown the failure: ", "No script shows the failure: "


def script_words(obstacle: str, *, kept: bool) -> str:
    """Return a sentence about a script that is not known to show its failure, because of an `obstacle`."""
    return f"{_NOT_SHOWN if kept else _NO_SCRIPT}{obstacle}."


def with_script_words(report: str, obstacle: str, *, kept: bool) -> str:
    """Return a report that ends with `script_words`, if there is an obstacle, instead of those of an earlier script."""
    paragraphs = report.rstrip().split("\n\n")
    if paragraphs[-1].startswith((_NOT_SHOWN, _NO_SCRIPT)):
        del paragraphs[-1]
    if obstacle:
        paragraphs.append(script_words(obstacle, kept=kept))
    return "\n\n".join(paragraphs) + "\n"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmed failure: `case` is the smallest that shows it, `first` the drawn one.

    `report` is for people. `needs` are the names of features that it needs; if it is not `ablated`, some may be
    missing. `cause` is the finding that represents its cause, "" if that is this one. It stands `apart` from others
    with the same kind, kernel and features, if these need others of the features. A flaky finding has a `recurrence`;
    `history` are the cases to run before it.
    """

    case: AnyCase
    first: AnyCase
    observation: Observation
    report: str
    needs: tuple[str, ...] = ()
    ablated: bool = True
    cause: str = ""
    apart: bool = False
    recurrence: Recurrence | None = None
    history: tuple[AnyCase, ...] = ()

    @property
    def name(self) -> str:
        """The folder's name, shared by all findings with the same fine fingerprint that do not stand apart."""
        return finding_name(self.case, self.observation, apart=self.needs if self.apart else None)

    @property
    def files(self) -> dict[str, bytes]:
        """The files that describe and reproduce the failure, by name."""
        files = {
            CASE: case_file.encode(self.case),
            FIRST: case_file.encode(self.first),
            REPORT: f"{self.report}\n".encode(),
        }
        return files | {earlier_case(number): case_file.encode(case) for number, case in enumerate(self.history)}


def earlier_case(number: int) -> str:
    """Return the name of the file with a case to run before the finding's own."""
    return f"before-{number:03}.json"


def text_beside(folder: Path, name: str) -> str | None:
    """Return the text of a file in a finding's folder, or None if it is missing, irregular, too large, or a link.

    Texts are put into issues, where a link could leak any file of this machine.
    """
    path = folder / name
    if path.is_symlink():
        return None
    try:
        return read_bytes(path).decode(errors="replace")
    except OSError:
        return None


def case_path(path: Path) -> Path:
    """Return the case file at `path`, or in a finding's folder. Raises CaseFileError for a finding of a server."""
    inside = path / CASE if path.is_dir() else path
    if not inside.exists() and (path / TRACE).exists():
        raise CaseFileError(f"{path} is a finding of attnfuzz serve, which has no case: run python {path / SCRIPT}")
    return inside
