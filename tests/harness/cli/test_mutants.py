"""`attnfuzz mutants` on a planner of a user's."""

import json
import shutil
from pathlib import Path

import pytest
from command_line import Attnfuzz

PLANNER = Path(__file__).parents[3] / "docs" / "examples" / "my_writer.py"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name a backend"),
        (("torch_sdpa", "--resume"), "--resume continues a run with its own options"),
        (("--resume",), "Name the --home of a run of mutants"),
        (("trtllm_mha", "--code", "nowhere.py"), "name a file or a folder below"),
        (("nothing",), "unknown backend 'nothing'"),
    ],
)
def test_bad_arguments_are_refused_in_a_line(attnfuzz: Attnfuzz, arguments: tuple[str, ...], words: str) -> None:
    ran = attnfuzz("mutants", *arguments)
    assert ran.code == 2
    assert words in " ".join(ran.err.split())


@pytest.mark.slow
def test_mutants_of_a_users_planner_are_run_and_the_table_has_their_lines(attnfuzz: Attnfuzz) -> None:
    # A worker loads the planner, and executes its lines. Descriptions of files are kept by name in the test's process,
    # where other tests have a mine.py.
    shutil.copy(PLANNER, "own_planner.py")
    before = Path("own_planner.py").read_bytes()
    chosen = ("--sample", "2", "--examples", "6", "--seed", "1")
    ran = attnfuzz("mutants", "own_planner.py:MINE", *chosen, "--json", "found.json", "--home", "out")
    assert ran.code in {0, 1}, ran.err
    found = json.loads(Path("found.json").read_text())
    assert len(found["mutants"]) == 2
    assert {each["fate"] for each in found["mutants"]} <= {"killed", "raises", "survived", "same plans"}
    assert all(each["source"] in before.decode() for each in found["mutants"])
    assert "fail" in ran.out.splitlines()[-2]
    again = attnfuzz("mutants", "--resume", "--home", "out", "--quiet")
    assert (again.code, again.out) == (ran.code, f"{ran.out.splitlines()[-2]}\n")
    assert Path("own_planner.py").read_bytes() == before
