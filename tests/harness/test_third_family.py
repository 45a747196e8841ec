"""A family of ops in a package of its own: its failures are found, minimized, filed, replayed and reported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Each command is a process of its own: it finds the package on its path, and a campaign starts jobs and workers.
pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).parents[1] / "fakes/copy_op"

MINE = """
from copy_op import COPY, op
def nothing(source, index, out):
    out[0] = source[index[0]]
MINE = COPY.backend("mine", op(nothing))
"""


def attnfuzz(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "attnfuzz.harness.cli.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    return subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)


def scripts(folder: Path, finding: Path) -> None:
    """Run the finding's script, which needs neither attnfuzz nor the package, also with the right kernel in it."""
    made = attnfuzz(folder, "export", str(finding), "--carry", str(PACKAGE / "copy_op.py"), "--output", "repro.py")
    assert made.returncode == 0, made.stdout + made.stderr
    text = (folder / "repro.py").read_text()
    assert "from attnfuzz" not in text
    wrong = '"copy_rows_wrong")(**arguments)'
    assert text.count(wrong) == 1
    right = text.replace(wrong, '"copy_rows")(**arguments)')
    for each, code, words in ((text, 1, "seen: out: 4 of 20 elements are wrong"), (right, 0, "out: 0 of 20 elements")):
        (folder / "repro.py").write_text(each)
        command = [sys.executable, "-I", "-c", "import runpy; runpy.run_path('repro.py', run_name='__main__')"]
        ran = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
        assert (ran.returncode, words in ran.stdout) == (code, True), ran.stdout + ran.stderr


def test_a_wrong_copy_is_found_minimized_replayed_and_reported(tmp_path: Path) -> None:
    ended = attnfuzz(tmp_path, "fuzz", "--backend", "copy_wrong", "--examples", "60", "--jobs", "1")
    text = ended.stdout + ended.stderr
    assert ended.returncode == 1, text
    assert "writes wrong bits into out with backwards (copy_wrong, copy)" in text
    (finding,) = (tmp_path / "attnfuzz-out/findings").iterdir()
    case = json.loads((finding / "case.json").read_text())
    assert (case["kind"], case["rows"], case["backwards"]) == ("copy", 5, True)
    assert json.loads((finding / "finding.json").read_text())["needs"] == ["backwards"]
    assert "for copy_wrong: rows 5, backwards" in (finding / "report.txt").read_text()
    assert "The kernel is at fault: copy_rows" in " ".join(text.split()), text
    assert attnfuzz(tmp_path, "replay", str(finding)).returncode == 1
    scripts(tmp_path, finding)
    page = next((tmp_path / "attnfuzz-out").rglob("report.html")).read_text()
    assert '<svg class="copy"><text>5 rows</text></svg>' in page
    report = attnfuzz(tmp_path, "report")
    assert report.stdout.startswith("1 new finding"), report.stdout + report.stderr


@pytest.mark.long
def test_a_users_backend_of_another_family_is_checked(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    checked = attnfuzz(tmp_path, "check", "mine.py:MINE")
    # A machine under load has no time for all of them.
    assert (checked.returncode, "mine.py:MINE fails" in checked.stdout) == (1, True), checked.stdout + checked.stderr
