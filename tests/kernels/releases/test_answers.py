"""A question that a mock was not given is answered by None, noted, and ends the run unless it was reviewed."""

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from attnfuzz.kernels.releases import answers
from attnfuzz.kernels.releases.answers import ABSENT, Questions, ServerMock, Unanswered
from attnfuzz.kernels.releases.errors import ReleaseError

_V = Version("0.5.9")
repin = runpy.run_path(str(Path(__file__).parents[3] / "scripts/pin_sglang.py"))["repin"]

_BACKEND = """
def init(runner):
    return runner.enable_x

def careful(runner):
    try:
        return runner.enable_x
    except Exception:
        return None

def probe(runner):
    return hasattr(runner, "enable_x")
"""


class _World:
    """A release of one file, and the log of a process that has it."""

    def __init__(self, root: Path, pins: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = root / "sglang" / "srt" / "backend.py"
        self.file.parent.mkdir(parents=True)
        self.file.write_text(_BACKEND)
        self.asked = Questions()
        monkeypatch.setattr(answers, "ASKED", self.asked)
        self.asked.watch(root, "SGLang", _V, pins, "answer it")

    def run(self, name: str, runner: ServerMock) -> Any:
        """Call a function of the release on a mock."""
        names: dict[str, Callable[[Any], Any]] = {}
        exec(compile(self.file.read_text(), str(self.file), "exec"), names)  # noqa: S102 - its frames have to lie in the file
        return names[name](runner)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _World:
    """A release of which nothing is pinned."""
    monkeypatch.delenv(answers.RECORD, raising=False)
    return _World(tmp_path, {}, monkeypatch)


def _pinned_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> _World:
    monkeypatch.delenv(answers.RECORD, raising=False)
    return _World(tmp_path, {"model_runner.enable_x": [place]}, monkeypatch)


def test_a_given_attribute_is_answered_without_a_question(world: _World) -> None:
    assert world.run("init", ServerMock("model_runner", enable_x=3)) == 3
    world.asked.check()


def test_an_unknown_question_ends_the_run_with_attribute_and_source_line(world: _World) -> None:
    said = "SGLang 0.5.9 asks for model_runner.enable_x (sglang/srt/backend.py:3)"
    with pytest.raises(Unanswered, match=re.escape(said)):
        world.run("init", ServerMock("model_runner"))


def test_a_failure_to_tell_is_no_finding_in_the_release() -> None:
    assert issubclass(Unanswered, ReleaseError)


def test_a_question_whose_refusal_the_release_swallows_ends_the_run_later(world: _World) -> None:
    assert world.run("careful", ServerMock("model_runner")) is None
    with pytest.raises(Unanswered, match=r"model_runner\.enable_x"):
        world.asked.check()


def test_a_question_is_complained_of_once_per_check_and_refused_each_time(world: _World) -> None:
    for _ in range(2):
        with pytest.raises(Unanswered):
            world.run("init", ServerMock("model_runner"))
    with pytest.raises(Unanswered):
        world.asked.check()
    world.asked.check()


def test_a_pinned_question_is_answered_by_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _pinned_world(tmp_path, monkeypatch, "sglang/srt/backend.py:3")
    assert world.run("init", ServerMock("model_runner")) is None
    world.asked.check()


def test_a_pinned_question_may_move_to_another_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _pinned_world(tmp_path, monkeypatch, "sglang/srt/backend.py:700")
    assert world.run("init", ServerMock("model_runner")) is None


def test_a_pinned_question_from_another_file_is_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _pinned_world(tmp_path, monkeypatch, "sglang/srt/other.py:3")
    with pytest.raises(Unanswered):
        world.run("init", ServerMock("model_runner"))


def test_an_attribute_that_servers_lack_is_absent_without_a_question(world: _World) -> None:
    assert world.run("probe", ServerMock("model_runner", enable_x=ABSENT)) is False
    world.asked.check()


def test_an_attribute_set_by_the_release_is_readable(world: _World) -> None:
    runner = ServerMock("model_runner")
    setattr(runner, "enable_x", 5)  # noqa: B010 - a mock has no declared attributes
    assert world.run("init", runner) == 5


def test_questions_of_our_own_code_are_not_recorded(world: _World) -> None:
    assert ServerMock("model_runner").enable_x is None
    world.asked.check()


def test_a_module_that_is_being_imported_decides_nothing(world: _World) -> None:
    exec(compile("asked.note('transformers.AutoConfig')", str(world.file), "exec"), {"asked": world.asked})  # noqa: S102
    world.asked.check()


def test_recording_answers_every_question_and_pins_the_record(
    world: _World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, pins = tmp_path / "recorded", tmp_path / "pins"
    recorded.mkdir()
    pins.mkdir()
    monkeypatch.setenv(answers.RECORD, str(recorded))
    for _ in range(2):
        assert world.run("init", ServerMock("model_runner")) is None
    world.asked.check()
    assert repin(recorded, pins) == ["0.5.9"]
    assert json.loads((pins / "0.5.9.json").read_text()) == {"model_runner.enable_x": ["sglang/srt/backend.py:3"]}


def test_a_release_that_asks_nothing_is_pinned_with_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(answers.RECORD, str(tmp_path))
    Questions().watch(tmp_path / "release", "SGLang", _V, {}, "")
    assert repin(tmp_path, tmp_path) == ["0.5.9"]
    assert json.loads((tmp_path / "0.5.9.json").read_text()) == {}


def test_processes_that_record_the_same_question_pin_it_once(tmp_path: Path) -> None:
    line = json.dumps({"release": "0.5.9", "name": "x.y", "place": "sglang/a.py:1"})
    other = json.dumps({"release": "0.5.9", "name": "x.y", "place": "sglang/a.py:9"})
    (tmp_path / answers.RECORDED).write_text(f"{line}\n{other}\n{line}\n")
    repin(tmp_path, tmp_path)
    assert json.loads((tmp_path / "0.5.9.json").read_text()) == {"x.y": ["sglang/a.py:1", "sglang/a.py:9"]}
