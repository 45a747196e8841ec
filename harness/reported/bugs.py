"""The reported bugs: the report of each, and a case that shows it, if this machine can run it.

The entries are JSON files in bugs/. A bug is shown by a backend of ours, in its state before the fix or with the
mistake planted, by a kernel on a GPU that has it, or by a released package. The counterpart without the bug is the same
backend without that; foreign kernels have none. An engine's bug may also name a release that shows it.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec

import attnfuzz
from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.backends.registry import fixed, resolve
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.defects.defect import BugClass
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_types import decode_any
from attnfuzz.reference.user_error import UserError
from attnfuzz.reference.validity import ImpossibleCase

FOLDER = Path(attnfuzz.__file__).parent / "bugs"

_RELEASE = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+")


class BugFileError(UserError):
    """An entry can't be read; the message says which, and why."""


class Bug(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One report.

    `sources` are URLs: the report, then its fix if that is another page; for our own unreported finds, the page in
    docs/findings. `kinds` are the failures in the report; one of them shows the bug. `shown_by` is the backend that has
    it (a revision like trtllm_mha@21649-before, a planted defect like trtllm_mha+k_scale_twice, a kernel on a GPU like
    xqa), or a release of a package like flashinfer-python==0.6.8.
    `affected` and `fixed_in` are versions of `project`, "" where unknown.

    `release` is the backend of an engine's release that has the bug; the one of the version `fixed_in` does not.
    `release_case` shows it there if `case` does not: a release may have it in another mode than our revision, and
    interprets Triton kernels, which is slow.
    An entry without `why_not_here` has a case and a backend, and fails wherever that can run. `why_not_here` is a
    clause with the requirements of the others. tests/harness/reported/test_bugs.py checks that no entry contradicts
    itself.
    """

    name: str
    title: str
    project: str
    bug_class: BugClass = msgspec.field(name="class")
    sources: tuple[str, ...]
    symptom: str
    kinds: tuple[Kind, ...]
    shown_by: str = ""
    release: str = ""
    affected: str = ""
    fixed_in: str = ""
    why_not_here: str = ""
    case: AnyCase | None = None
    release_case: AnyCase | None = None

    @property
    def reproduced(self) -> bool:
        """Whether it can be reproduced: it has a case, and a backend of ours shows it."""
        return self.case is not None and self.backend_before != ""

    @property
    def missing(self) -> str | None:
        """Why it can't be reproduced on this machine, in a clause; None if it can."""
        return resolve(self.backend_before).missing() if self.reproduced else self.why_not_here

    @property
    def backend_before(self) -> str:
        """The backend that has the bug, "" if none of ours does."""
        return "" if _RELEASE.fullmatch(self.shown_by) else self.shown_by

    @property
    def backend_after(self) -> str:
        """The same backend without the bug, "" if there is none: for a kernel that is not ours, or has no entry."""
        after = fixed(self.backend_before)
        return after if after != self.backend_before else ""

    @property
    def release_after(self) -> str:
        """The backend of the release that fixed it; "" if no release of it can be run, or none has the fix."""
        engine = engine_of(self.release)
        kind = engine.kind_of(self.release) if engine is not None else None
        return engine.backend(self.fixed_in, kind) if engine is not None and kind and self.fixed_in else ""

    @property
    def case_in_release(self) -> AnyCase | None:
        """The case that fails in `release`, whatever its backend; None if there is none."""
        return self.release_case or self.case if self.release else None

    @property
    def case_before(self) -> AnyCase:
        """The case on the backend that has the bug, where it fails."""
        return self._case_on(self.backend_before)

    @property
    def case_after(self) -> AnyCase:
        """The case on the backend without the bug, where it passes."""
        return self._case_on(self.backend_after)

    def _case_on(self, backend: str) -> AnyCase:
        if self.case is None:
            raise ValueError(f"{self.name} has no case")
        return self.case.having(backend=backend)


def projects() -> list[str]:
    """Return the projects that have a reported bug, by name."""
    return sorted({bug.project for bug in load_bugs()})


def cases_of(backend: str) -> Iterator[AnyCase]:
    """Yield the cases of a backend's reported bugs, whether it has them or is the one without."""
    for bug in load_bugs():
        # Campaigns draw and shrink steps: a bug of literal calls is only run by `attnfuzz bugs`.
        if bug.case is not None and bug.case.searchable and backend in {bug.backend_before, bug.backend_after}:
            yield bug.case.having(backend=backend)


@cache
def load_bugs(folder: Path = FOLDER) -> tuple[Bug, ...]:
    """Load all entries, by name. Raises BugFileError if one is damaged, or if there is none."""
    bugs = tuple(_load(path) for path in sorted(folder.glob("*.json")))
    if not bugs:
        raise BugFileError(f"no bug entries in {folder}: reinstall attnfuzz")
    return bugs


def _load(path: Path) -> Bug:
    try:
        bug = msgspec.json.decode(path.read_bytes(), type=Bug, dec_hook=decode_any)
        for case in (bug.case, bug.release_case):
            if case is not None:
                case.validate()
    except (OSError, msgspec.DecodeError, ImpossibleCase) as error:
        raise BugFileError(f"bug entry {path.name} can't be read: {error}") from error
    return bug
