"""The lines of a release that make the metadata of a call, and those that write to it."""

import importlib
from pathlib import Path

import pytest
import torch

from attnfuzz.kernels.releases import recording
from attnfuzz.kernels.releases.origins import Origins

PLANNER = """\
import torch
from {package}.utils import copy

def plan(buffer):
    lengths = torch.tensor([3, 4], dtype=torch.int32)
    fewer = lengths - 1
    buffer[:1] = 7
    buffer[1:].fill_(-1)
    copy(buffer)
    return {{"lengths": fewer, "first": fewer[:1], "slots": buffer[:4], "query": torch.zeros(2)}}
"""


def test_metadata_has_the_lines_that_made_it_and_the_last_ones_that_wrote_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "engine_of_origins"
    folder = tmp_path / package
    folder.mkdir()
    (folder / "utils.py").write_text("def copy(buffer):\n    buffer.copy_(buffer.clone())\n")
    (folder / "planner.py").write_text(PLANNER.format(package=package))
    monkeypatch.syspath_prepend(str(tmp_path))
    planner = importlib.import_module(f"{package}.planner")
    buffer, origins = torch.zeros(4, dtype=torch.int64), Origins(tmp_path, package)
    with origins:
        arguments = planner.plan(buffer)
        with recording.outside():
            # A write of ours is none of the release's.
            arguments["slots"].fill_(0)
    assert origins.words("planner.py:12", arguments) == (
        "called at planner.py:12 with lengths of line 6, first of line 10 "
        "and slots of line 10 (written at line 8 and 9)"
    )
    assert origins.words("another.py:1", {"lengths": arguments["lengths"]}) == (
        "called at another.py:1 with lengths of planner.py:6"
    )
    assert origins.words("another.py:1", {"slots": arguments["slots"]}) == (
        "called at another.py:1 with slots of planner.py:10 (written at planner.py:8 and 9)"
    )
    assert origins.words(None, arguments) == ""
    assert origins.line() is None
