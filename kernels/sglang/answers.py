"""What stands in for the objects of a server that a release asks, and the log of what it asked without being told.

Mocks answer None to what they were not given. That may choose a branch in silence that no server would take: each such
question is noted with its place, and the ones that were looked at are pinned for each version. Any other ends the run.
"""

import json
import os
import sys
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from types import FrameType
from typing import Any, Final

from packaging.version import Version

from attnfuzz.kernels.sglang.errors import ReleaseError

RECORD = "ATTNFUZZ_SGLANG_ASKED"
"""The environment's variable that names a folder for questions: then none is refused."""

RECORDED = "asked.ndjson"
"""The file in there."""


class NotTold(ReleaseError):
    """A release asked what its mocks have no answer for: whatever it computes from here on means nothing."""


class _Absent:
    """The answer that there is no such attribute."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""Told of an attribute that the object of a server does not have either: asking for it is an AttributeError."""


@dataclass(frozen=True, order=True)
class Question:
    """What was asked, like "model_runner.server_args.enable_x", and where: a file of the release, and its line."""

    what: str
    file: str
    line: int = field(compare=False)

    @property
    def place(self) -> str:
        """The file below the release's package, and the line."""
        return f"{self.file}:{self.line}"


class Questions:
    """The questions of one process that has imported a release. Nothing is noted before `watch` says which.

    With ATTNFUZZ_SGLANG_ASKED naming a folder nothing is refused: each question becomes a line of a file in there,
    from which `attnfuzz.kernels.sglang.repin` writes what is pinned.
    """

    def __init__(self) -> None:
        self._root: Path | None = None
        self._release = ""
        self._pinned: frozenset[tuple[str, str]] = frozenset()
        self._seen: set[Question] = set()
        self._new: list[Question] = []

    def watch(self, root: Path, version: Version) -> None:
        """Say which release asks from now on: the folder that has the package `sglang`, and its version."""
        if root == self._root:
            return
        self._root, self._release, self._pinned = root, str(version), _known(version)
        # Of a release that asks nothing it is known as well.
        _record({"release": self._release})

    def note(self, what: str) -> None:
        """Log a question for `what`; the release's line that asks is found on the stack.

        Raises NotTold for a question that was not reviewed when the version was pinned.
        """
        asker = self._asker(sys._getframe(1))  # noqa: SLF001 - there is no other way to the caller
        # A module that is being imported takes names, and decides nothing by them.
        if asker is None or asker.f_code.co_name == "<module>":
            return
        assert self._root is not None
        file = Path(asker.f_code.co_filename).relative_to(self._root).as_posix()
        question = Question(what, file, asker.f_lineno)
        if question not in self._seen:
            self._seen.add(question)
            _record({"release": self._release, "what": question.what, "place": question.place})
            if not self._is_known(question):
                self._new.append(question)
        if not self._is_known(question):
            raise NotTold(self._message(question))

    def check(self) -> None:
        """Raise NotTold for what was asked since the last check, also where the release has caught it."""
        new, self._new = self._new, []
        if new:
            raise NotTold(self._message(new[0]))

    def _is_known(self, question: Question) -> bool:
        return (question.what, question.file) in self._pinned or RECORD in os.environ

    def _message(self, question: Question) -> str:
        return (
            f"SGLang {self._release} asks for {question.what} ({question.place}), and nothing says what a server "
            "answers: tell it in kernels/sglang/runner.py, or look at the branch that it takes and run make pin-sglang"
        )

    def _asker(self, frame: FrameType | None) -> FrameType | None:
        """The innermost frame of the release on the stack."""
        while frame is not None and (self._root is None or not frame.f_code.co_filename.startswith(f"{self._root}/")):
            frame = frame.f_back
        return frame


def _record(line: dict[str, str]) -> None:
    folder = os.environ.get(RECORD)
    if folder:
        # One write of a short line: processes do not mix theirs.
        with (Path(folder) / RECORDED).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(line)}\n")


def _known(version: Version) -> frozenset[tuple[str, str]]:
    """What is pinned and in which file: lines move from one tree to another, files hardly."""
    return frozenset((what, place.rpartition(":")[0]) for what, places in pinned(version).items() for place in places)


ASKED = Questions()
"""The log of this process: a process imports one release."""


class ServerMock:
    """An object of a server with the attributes that are given: a mock that logs each other question.

    Attributes that the release sets by itself are told by that.
    """

    def __init__(self, name: str, /, **told: Any) -> None:
        self.__dict__.update(told)
        self.__dict__["_told_name"] = name
        for attribute in [key for key, value in told.items() if value is ABSENT]:
            del self.__dict__[attribute]
            self.__dict__.setdefault("_told_absent", set()).add(attribute)

    def __getattr__(self, attribute: str) -> Any:
        # Only what is in no dictionary comes here.
        mine = self.__dict__
        if attribute.startswith("__") or attribute in mine.get("_told_absent", ()):
            raise AttributeError(f"{mine.get('_told_name', 'mock')} has no {attribute}")
        ASKED.note(f"{mine['_told_name']}.{attribute}")
        return None

    def __repr__(self) -> str:
        return f"<told {self._told_name}>"


def pinned(version: Version) -> dict[str, list[str]]:
    """Return what a release asks that its mocks were not given, and its lines that do; each was reviewed.

    A version of which nothing is pinned has what the one before it has.
    """
    folder = files("attnfuzz.kernels.sglang") / "pinned"
    names = [entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")]
    earlier = [name for name in names if Version(name) <= version]
    if not earlier:
        return {}
    pins: dict[str, list[str]] = json.loads((folder / f"{max(earlier, key=Version)}.json").read_text(encoding="utf-8"))
    return pins
