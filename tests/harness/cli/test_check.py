"""`attnfuzz check` as users see it. A user's file is imported by processes that may die."""

from pathlib import Path

import msgspec
import pytest
from command_line import Attnfuzz

from attnfuzz.harness.cli.answers import Checked

pytestmark = pytest.mark.slow

FILE = """
from attnfuzz import FunctionBackend

def nothing(**arguments): ...

NOTHING = FunctionBackend(nothing)
"""


def test_a_backend_that_passes_is_one_line(attnfuzz: Attnfuzz) -> None:
    ran = attnfuzz("check", "torch_sdpa")
    assert ran.code == 0
    assert " ".join(ran.out.split()).startswith("torch_sdpa passes 20 plain cases: ")


def test_a_function_that_writes_nothing_is_one_screen(attnfuzz: Attnfuzz) -> None:
    Path("mine.py").write_text(FILE)
    ran = attnfuzz("check", "mine.py:NOTHING")
    assert ran.code == 1
    assert ran.out.startswith("mine.py:NOTHING fails 20 of 20 plain cases.")
    assert "was never written" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    assert len(ran.out.splitlines()) <= 24


def test_it_answers_in_json(attnfuzz: Attnfuzz) -> None:
    Path("mine.py").write_text(FILE)
    ran = attnfuzz("check", "mine.py:NOTHING", "--json", "-")
    found = msgspec.json.decode(ran.out, type=Checked)
    assert (found.cases, found.failed) == (20, 20)
    assert [each.failure.place for each in found.failures] == ["out"]


def test_a_campaign_of_it_does_not_start(attnfuzz: Attnfuzz) -> None:
    Path("mine.py").write_text(FILE)
    ran = attnfuzz("fuzz", "--backend", "mine.py:NOTHING", "--time", "5s")
    assert ran.code == 2
    assert "fails 20 of 20 plain cases" in ran.err
    assert not Path("attnfuzz-out").exists()
