"""Running a script with a site, and what comes of it."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_releases import make_site
from packaging.version import Version

from attnfuzz.harness.releases.outcomes import Ending, Outcome
from attnfuzz.harness.releases.script import run_script
from attnfuzz.harness.releases.sites import site_at

pytestmark = pytest.mark.slow

LONG = 600.0


@pytest.fixture(autouse=True)
def _buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python buffers what it prints, unless it is asked not to."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


def ran(tmp_path: Path, script: str, *, release: str = "", seconds: float = LONG) -> Outcome:
    """The outcome of a script with a version 0.6.8 whose `flashinfer` is `release`."""
    path = tmp_path / "work" / "script.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(script)
    site = site_at(make_site(tmp_path / "site", "0.6.8", release), "flashinfer-python", Version("0.6.8"))
    return run_script(path, site, tmp_path / "workspace", seconds)


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ("import flashinfer", Outcome(Ending.PASSES)),
        ("import flashinfer\nprint('wrong')\nraise SystemExit(1)", Outcome(Ending.FAILS, "wrong")),
        ("import flashinfer\nraise SystemExit(1)", Outcome(Ending.FAILS, "exit code 1")),
        (
            "import flashinfer\nprint('0 are wrong\\nseen: 3 are\\nseen: more\\nbye')\nraise SystemExit(1)",
            Outcome(Ending.FAILS, "3 are"),
        ),
        (
            "import flashinfer, sys\nprint('a\\nb\\n\\n')\nprint('a warning', file=sys.stderr)\nsys.exit(1)",
            Outcome(Ending.FAILS, "b"),
        ),
        ("import flashinfer\nraise SystemExit('wrong\\nat last\\n')", Outcome(Ending.FAILS, "at last")),
        ("import flashinfer\nassert 1 > 2, 'not so'", Outcome(Ending.FAILS, "AssertionError: not so")),
        (
            "import flashinfer\nprint('0 are wrong')\nraise ValueError('no\\nadvice')",
            Outcome(Ending.FAILS, "ValueError: no"),
        ),
        (
            "import flashinfer, sys\nsys.stdout.close()\nfrom flashinfer import not_yet_there",
            Outcome(
                Ending.CANNOT_RUN,
                "ImportError: cannot import name 'not_yet_there' from 'flashinfer' ({site})",
            ),
        ),
        (
            "import flashinfer, os\nprint('calling')\nos.kill(os.getpid(), 11)",
            Outcome(Ending.FAILS, "died of SIGSEGV: calling"),
        ),
        (
            "import flashinfer, os\nos.kill(os.getpid(), 9)",
            Outcome(Ending.CANNOT_RUN, "it was killed from outside with SIGKILL"),
        ),
        ("print('no GPU')\nraise SystemExit(2)", Outcome(Ending.CANNOT_RUN, "no GPU")),
        ("raise SystemExit(2)", Outcome(Ending.CANNOT_RUN, "the script printed no reason")),
        ("import flashinfer\nraise SystemExit(3)", Outcome(Ending.CANNOT_RUN, "exit code 3, which has no meaning")),
        ("", Outcome(Ending.CANNOT_RUN, "it did not import flashinfer")),
        (
            "from flashinfer import not_yet_there",
            Outcome(Ending.CANNOT_RUN, "ImportError: cannot import name 'not_yet_there' from 'flashinfer' ({site})"),
        ),
    ],
)
def test_exit_codes_and_signals(tmp_path: Path, script: str, outcome: Outcome) -> None:
    site = str(tmp_path / "site" / "flashinfer" / "__init__.py")
    assert ran(tmp_path, script) == Outcome(outcome.ending, outcome.line.format(site=site))


def test_a_release_that_can_not_be_imported_is_no_fault(tmp_path: Path) -> None:
    outcome = ran(tmp_path, "import flashinfer", release="raise RuntimeError('other versions of the cubins')")
    assert outcome == Outcome(Ending.CANNOT_RUN, "RuntimeError: other versions of the cubins")


def test_the_site_comes_before_all_other_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the script's own folder, and before what $PYTHONPATH names; both stay on the path."""
    (tmp_path / "elsewhere").mkdir()
    for folder in ("work", "elsewhere"):
        make_site(tmp_path / folder, "9.9.9")
    (tmp_path / "work" / "beside.py").touch()
    (tmp_path / "elsewhere" / "there.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    script = "import beside, there, flashinfer\nprint(flashinfer.__version__)\nraise SystemExit(1)"
    assert ran(tmp_path, script) == Outcome(Ending.FAILS, "0.6.8")


def test_processes_that_the_script_starts_have_the_site_too(tmp_path: Path) -> None:
    script = (
        "import flashinfer, subprocess, sys\n"
        "raise SystemExit(subprocess.call([sys.executable, '-c', "
        "'import flashinfer; print(flashinfer.__version__); raise SystemExit(1)']))"
    )
    assert ran(tmp_path, script) == Outcome(Ending.FAILS, "0.6.8")


def test_a_module_from_elsewhere_does_not_count(tmp_path: Path) -> None:
    other = make_site(tmp_path / "other", "9.9.9")
    outcome = ran(tmp_path, f"import sys\nsys.path.insert(0, {str(other)!r})\nimport flashinfer")
    assert outcome.ending is Ending.CANNOT_RUN
    assert f"imported {other}/flashinfer/__init__.py, which is not in {tmp_path}/site" in outcome.line


def test_flashinfer_compiles_into_the_workspace(tmp_path: Path) -> None:
    script = "import flashinfer, os\nprint(os.environ['FLASHINFER_WORKSPACE_BASE'])\nraise SystemExit(1)"
    assert ran(tmp_path, script).line == str(tmp_path / "workspace")
    assert (tmp_path / "workspace").is_dir()


def test_a_script_is_given_its_name_and_nothing_else(tmp_path: Path) -> None:
    script = "import flashinfer, sys\nprint(sys.argv, __name__, __file__)\nraise SystemExit(1)"
    path = str(tmp_path / "work" / "script.py")
    assert ran(tmp_path, script).line == f"{[path]} __main__ {path}"


def test_a_script_is_stopped_after_its_time_limit(tmp_path: Path) -> None:
    outcome = ran(tmp_path, "import flashinfer, signal\nsignal.pause()", seconds=0.5)
    assert outcome == Outcome(Ending.CANNOT_RUN, "it did not end within 0.5 s: increase --timeout")


def test_processes_left_by_the_script_are_ended(tmp_path: Path) -> None:
    script = (
        "import flashinfer, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {lasting(tmp_path)!r}], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
    )
    assert ran(tmp_path, script) == Outcome(Ending.PASSES)
    assert is_ended(tmp_path)


def test_the_script_ends_with_its_parent(tmp_path: Path) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    script = lasting(tmp_path).replace("print('locked', flush=True)", f"open({str(started)!r}, 'w').close()")
    path = tmp_path / "script.py"
    path.write_text(f"import flashinfer\n{script}")
    site = make_site(tmp_path / "site", "0.6.8")
    waiting = (
        "from pathlib import Path\n"
        "from packaging.version import Version\n"
        "from attnfuzz.harness.releases.script import run_script\n"
        "from attnfuzz.harness.releases.sites import site_at\n"
        f"site = site_at(Path({str(site)!r}), 'flashinfer-python', Version('0.6.8'))\n"
        "try:\n"
        f"    run_script(Path({str(path)!r}), site, Path({str(tmp_path)!r}), {LONG})\n"
        "finally:\n"
        # So that the test fails, and does not wait, if the script has not come that far.
        f"    open({str(started)!r}, 'w').close()\n"
    )
    (tmp_path / "waiting.py").write_text(waiting)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "waiting.py")], env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as parent:
        # Returns when the script has its lock.
        started.open().close()
        parent.kill()
    assert is_ended(tmp_path)


def lasting(tmp_path: Path) -> str:
    """Python that locks a file, says so, and waits; it leaves a mark if nobody ends it."""
    return (
        "import fcntl, pathlib, signal\n"
        f"lock = open({str(tmp_path / 'lock')!r}, 'w')\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        f"signal.signal(signal.SIGALRM, lambda *_: pathlib.Path({str(tmp_path / 'survived')!r}).touch())\n"
        "signal.alarm(600)\n"
        "print('locked', flush=True)\n"
        "signal.pause()\n"
    )


def is_ended(tmp_path: Path) -> bool:
    """Whether what locked the file is over, and not because its time was up."""
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
    return not (tmp_path / "survived").exists()


def test_output_without_end_is_cut_in_the_middle(tmp_path: Path) -> None:
    script = "import flashinfer, sys\nprint('x' * 3_000_000, file=sys.stderr)\nraise ValueError('at last')"
    assert ran(tmp_path, script) == Outcome(Ending.FAILS, "ValueError: at last")


def test_terminal_escapes_are_replaced(tmp_path: Path) -> None:
    outcome = ran(tmp_path, "import flashinfer\nprint('\\x1b[31mred')\nraise SystemExit(1)")
    assert outcome.line == "\N{REPLACEMENT CHARACTER}[31mred"
