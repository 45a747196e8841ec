"""A script is run in a process of its own, which ends in time, and can't import attnfuzz."""

import os
import sys
import time
from pathlib import Path

import pytest

from attnfuzz.harness.export.proof import prove

pytestmark = pytest.mark.slow
"""Each script is a process, as for its reader."""

SECONDS = 30.0


def test_a_script_that_exits_1_shows_its_failure() -> None:
    proof = prove("import sys\nprint('the fault shows')\nsys.exit(1)", SECONDS)
    assert proof.shows
    assert proof.printed == "the fault shows\n"
    assert not proof.obstacle


@pytest.mark.parametrize(
    ("script", "obstacle"),
    [
        ("", "its calls found nothing wrong"),
        ("import attnfuzz.kernels", "it could not run (exit code 2: ImportError: the script needs attnfuzz)"),
        ("import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    ],
)
def test_a_script_that_does_not_show_it_says_why(script: str, obstacle: str) -> None:
    code = "import sys, traceback\ntry:\n    " + (script or "pass") + "\nexcept Exception:\n"
    proof = prove(f"{code}    traceback.print_exc()\n    sys.exit(2)", SECONDS)
    assert not proof.shows
    assert obstacle in proof.obstacle


def test_a_script_ends_in_time_with_all_its_processes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"""
import os, time
child = os.fork()
with open({str(pids)!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")
time.sleep(60)
"""
    proof = prove(script, 1.5)
    assert proof.code is None
    assert proof.obstacle.startswith("it was stopped after ")
    written = [int(line) for line in pids.read_text().split()]
    assert written
    until = time.monotonic() + SECONDS
    while any(Path(f"/proc/{pid}").exists() and not _is_zombie(pid) for pid in written):
        assert time.monotonic() < until
        time.sleep(0.05)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_settings_of_this_python_are_not_the_scripts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    assert "No module named 'neighbour'" in prove("import neighbour", SECONDS).obstacle


def test_a_library_may_be_installed_in_a_folder_on_the_path_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "some_library.py").write_text("")
    (tmp_path / "some_library-1.0.dist-info").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert prove("import some_library, sys\nassert sys.argv[1:] == []", SECONDS).code == 0


def test_a_script_loads_the_modules_that_are_compiled_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A module from an archive has no state of ninja, which would compile it again."""
    folder = tmp_path / "flashinfer" / "jit"
    folder.mkdir(parents=True)
    (tmp_path / "flashinfer-0.dist-info").mkdir()
    for package in (folder.parent, folder):
        (package / "__init__.py").write_text("")
    nowhere = str(tmp_path / "nowhere")
    directories = f"FLASHINFER_AOT_DIR = Path({nowhere!r})\nFLASHINFER_JIT_DIR = 'jit'"
    (folder / "env.py").write_text(f"from pathlib import Path\n{directories}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    proof = prove("import flashinfer.jit.env\nprint(flashinfer.jit.env.FLASHINFER_AOT_DIR)", SECONDS)
    assert (proof.code, proof.printed) == (0, "jit\n")
