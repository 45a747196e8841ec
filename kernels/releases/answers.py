"""Mocks for a server's objects, and a log of the attributes that a release reads although they were not given.

A mock returns None for such an attribute, which may silently take a branch that no server would take. Each access is
noted with its place; reviewed ones are pinned for each version, and any other ends the run.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from packaging.version import Version

from attnfuzz.kernels.releases.errors import ReleaseError

RECORD = "ATTNFUZZ_ASKED"
"""The environment variable with a folder for recorded questions: if it is set, none is refused."""

RECORDED = "asked.ndjson"
"""The file in that folder."""

Pins = Mapping[str, Sequence[str]]
"""The attributes that a release reads although its mocks lack them, with the reviewed lines."""


class Unanswered(ReleaseError):
    """A release read an attribute that its mocks do not have: anything computed afterwards is meaningless."""


class _Absent:
    """The value of an attribute that does not exist."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent()
"""Given to a mock for an attribute that a server's object lacks too: reading it raises AttributeError."""


@dataclass(frozen=True, order=True)
class Question:
    """The attribute in question, such as "model_runner.server_args.enable_x", and the release's file and line."""

    name: str
    file: str
    line: int = field(compare=False)

    @property
    def place(self) -> str:
        """The file below the release's package, and the line."""
        return f"{self.file}:{self.line}"


class Questions:
    """The questions of one process that has imported a release. None is noted before `watch`.

    If ATTNFUZZ_ASKED names a folder, nothing is refused: each question becomes a line of a file in it, from
    which `scripts/pin_sglang.py` writes the pins.
    """

    def __init__(self) -> None:
        self._root: Path | None = None
        self._title, self._release, self._remedy = "", "", ""
        self._pinned: frozenset[tuple[str, str]] = frozenset()
        self._seen: set[Question] = set()
        self._new: list[Question] = []

    def watch(self, root: Path, title: str, version: Version, pins: Pins, remedy: str) -> None:
        """Set the release that asks from now on: the folder with its package, its engine's title, and its version.

        `pins` are the reviewed questions, and `remedy` ends the message about any other.
        """
        if root == self._root:
            return
        self._root, self._title, self._release, self._remedy = root, title, str(version), remedy
        self._new.clear()
        # Lines move from one tree to another, files rarely.
        self._pinned = frozenset((name, place.rpartition(":")[0]) for name, places in pins.items() for place in places)
        # Record releases that ask nothing, too.
        _record({"release": self._release})

    def note(self, name: str) -> None:
        """Log a question for the attribute `name`; the asking line of the release is found on the stack.

        Raises Unanswered for a question that was not reviewed when the version was pinned.
        """
        asker = self._asker(sys._getframe(1))  # noqa: SLF001 - there is no other way to the caller
        # A module that is being imported takes names without deciding anything by them.
        if asker is None or asker.f_code.co_name == "<module>":
            return
        assert self._root is not None
        file = Path(asker.f_code.co_filename).relative_to(self._root).as_posix()
        question = Question(name, file, asker.f_lineno)
        if question not in self._seen:
            self._seen.add(question)
            _record({"release": self._release, "name": question.name, "place": question.place})
            if not self._is_known(question):
                self._new.append(question)
        if not self._is_known(question):
            raise Unanswered(self._message(question))

    def check(self) -> None:
        """Raise Unanswered for a question since the last check, even if the release has caught the error."""
        new, self._new = self._new, []
        if new:
            raise Unanswered(self._message(new[0]))

    def _is_known(self, question: Question) -> bool:
        return (question.name, question.file) in self._pinned or RECORD in os.environ

    def _message(self, question: Question) -> str:
        return (
            f"{self._title} {self._release} asks for {question.name} ({question.place}), and a server's answer is not "
            f"known: {self._remedy}"
        )

    def _asker(self, frame: FrameType | None) -> FrameType | None:
        """Return the innermost frame of the release on the stack."""
        while frame is not None and (self._root is None or not frame.f_code.co_filename.startswith(f"{self._root}/")):
            frame = frame.f_back
        return frame


def _record(line: dict[str, str]) -> None:
    folder = os.environ.get(RECORD)
    if folder:
        # One write of a short line: lines of several processes do not mix.
        with (Path(folder) / RECORDED).open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(line)}\n")


ASKED = Questions()
"""The log of this process: a process imports one release."""


class ServerMock:
    """A mock of a server's object with the given attributes, which logs every other access.

    Attributes that the release sets itself count as given.
    """

    def __init__(self, name: str, /, **given: Any) -> None:
        self.__dict__.update(given)
        self.__dict__["_mock_name"] = name
        for attribute in [key for key, value in given.items() if value is ABSENT]:
            del self.__dict__[attribute]
            self.__dict__.setdefault("_mock_absent", set()).add(attribute)

    def __getattr__(self, attribute: str) -> Any:
        # Called only for attributes in no dictionary.
        mine = self.__dict__
        if attribute.startswith("__") or attribute in mine.get("_mock_absent", ()):
            raise AttributeError(f"{mine.get('_mock_name', 'mock')} has no {attribute}")
        ASKED.note(f"{mine['_mock_name']}.{attribute}")
        return None

    def __repr__(self) -> str:
        return f"<mock {self._mock_name}>"
