"""Whatever a file holds, each command that reads it ends with 0, 1 or 2 and one message, and touches nothing else.

Fields are those of good files, which hold every optional one. Commands run in this process, and what would start
workers is replaced here by what starts none: `test_hostile_runs.py` has those.
"""

import contextlib
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from unittest import mock

import pytest
from file_formats import CALLS, FAILURE, Format, formats, make_home
from hostile_values import hostile_bytes, hostile_json
from hypothesis import HealthCheck, Phase, given, seed, settings
from msgspec.structs import replace
from repetition import examples

from attnfuzz.harness.cli.main import main
from attnfuzz.harness.cli.terminal import Exit
from attnfuzz.harness.releases.results import SweepResults
from attnfuzz.harness.search.shrink import Shrunk
from attnfuzz.harness.triage import Blame, Triage
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.reference import calibration
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase

pytestmark = pytest.mark.slow

MOST_SECONDS = 30
MOST_BYTES_MORE = 1 << 30
EXAMPLES = 6
LONG_EXAMPLES = 4000


class FakeRunner:
    """Runs nothing: every case fails."""

    def __init__(self, *_: object, **__: object) -> None:
        self.restarts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def verdict(self, case: AnyCase, backend: str | None = None) -> Verdict:
        place = f"{case.backend} {case.mode}" if isinstance(case, CallCase) else "out"
        return Verdict(observations=(replace(FAILURE, kind=Kind.ILLEGAL_ACCESS, place=place),), margins={"T1": 2.0})

    def explained(self, _: AnyCase, verdict: Verdict) -> Verdict:
        return verdict

    def trace_both(self, case: AnyCase) -> tuple[Verdict, None, CallCase]:
        verdict, calls = self.trace(case)
        return verdict, None, calls

    def trace(self, case: AnyCase) -> tuple[Verdict, CallCase]:
        return self.verdict(case), CALLS


def triaged(case: AnyCase, *_: object, **__: object) -> Triage:
    notes = case.notes if isinstance(case, CallCase) else ()
    return Triage(case="x", backend=case.backend, fault=Blame.CALLER, conclusion="c", sentences=notes)


class FakeSweep:
    """A sweep that is done already."""

    def __init__(self, results: SweepResults, *_: object, **__: object) -> None:
        self.results = results

    def run(self) -> Iterator[SweepResults]:
        yield self.results


REPLACED: dict[str, Any] = {
    "attnfuzz.harness.cli.cases.Runner": FakeRunner,
    "attnfuzz.harness.cli.cases.shrink": lambda case, *_, **__: Shrunk(case=case, observation=FAILURE, runs=1),
    "attnfuzz.harness.cli.cases.triage_of": triaged,
    "attnfuzz.harness.export.shared_runner": FakeRunner,
    "attnfuzz.harness.cli.releases.sweep.Runner": FakeRunner,
    "attnfuzz.harness.cli.releases.sweep.Sweep": FakeSweep,
    "attnfuzz.harness.cli.releases.sweep.reported": lambda *_: [],
    "attnfuzz.harness.campaign.run.prepare": lambda *_: None,
    "attnfuzz.harness.cli.campaign._run": lambda *_, **__: Exit.CLEAN,
}


def contents(folder: Path) -> Mapping[str, str]:
    """What lies in a folder, by path."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }


def too_long(*_: object) -> None:
    pytest.fail(f"it took more than {MOST_SECONDS} s")


def ran(*arguments: str) -> tuple[int, str, str]:
    """The exit code of a command, and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    signal.alarm(MOST_SECONDS)
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("sys.argv", ["attnfuzz", *arguments]),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    signal.alarm(0)
    assert isinstance(code, int | None)
    return int(code or 0), out.getvalue(), err.getvalue()


def check(arguments: Sequence[str]) -> int:
    """Run a command, and look at all that it may not do; its exit code."""
    code, out, err = ran(*arguments)
    what = f"{' '.join(arguments)}: {code}\n{err[-3000:]}"
    assert code in {0, 1, 2}, what
    assert "Traceback" not in err, what
    assert "itself failed" not in err, what
    errors = [line for line in err.splitlines() if line.startswith("Error: ")]
    if code == 2:
        # A ledger has a line for each of its mistakes.
        assert len(errors) == 1, what
    assert len(err) < 20_000, what
    unprintable = {each for each in out + err if not each.isprintable()} - {"\n", "\t"}
    assert not {each for each in unprintable if ord(each) < 0x3000 and each != "\xa0"}, (what, unprintable)
    script = Path("script.py")
    if script.exists():
        compile(script.read_bytes(), "script.py", "exec")
        script.unlink()
    assert not Path("PWNED").exists(), what
    return code


TRIED = {"files": 0, "commands": 0}


def attack(name: str, root: Path, data: bytes) -> list[int]:
    """Write content where it is read from, in a fresh home, and run each command on it; the exit codes."""
    work, good = root / "work", root / "good"
    form = formats_now()[name]
    codes = []
    for arguments in form.commands:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(good, work)
        os.chdir(work)
        Path(form.path).write_bytes(data)
        codes.append(check(arguments))
        TRIED["commands"] += 1
    TRIED["files"] += 1
    return codes


FORMATS: dict[str, Format] = {}


def formats_now() -> dict[str, Format]:
    if not FORMATS:
        FORMATS.update(formats())
    return FORMATS


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a good home, a place for a hostile one, and what none may touch."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "outside").mkdir()
    (folder / "outside/canary").write_text("sings")
    (folder / "good").mkdir()
    make_home(folder / "good")
    here = Path.cwd()
    before = signal.signal(signal.SIGALRM, too_long)
    with contextlib.ExitStack() as stack:
        for target, fake in REPLACED.items():
            stack.enter_context(mock.patch(target, fake))
        stack.enter_context(mock.patch.dict(os.environ))
        os.environ.pop("COLUMNS", None)
        os.environ.pop("GITHUB_STEP_SUMMARY", None)
        yield folder
    signal.signal(signal.SIGALRM, before)
    os.chdir(here)


def campaign(name: str, root: Path, examples: int, number: int) -> None:
    """So many hostile files of a format; nothing is touched outside, and memory stays what it was."""

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate] if examples > EXAMPLES else [Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @seed(number)
    @given(formats_now()[name].content)
    def example(data: bytes) -> None:
        attack(name, root, data)

    outside = contents(root / "outside"), sorted(path.name for path in root.iterdir() if path.name != "work")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    example()
    assert (contents(root / "outside"), sorted(p.name for p in root.iterdir() if p.name != "work")) == outside
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - memory < MOST_BYTES_MORE


NAMES = (
    *("case", "case of calls", "log", "history", "case of a finding", "report of a finding"),
    *("index", "case of a corpus", "ledger", "sweep"),
)


@pytest.mark.parametrize("name", NAMES)
def test_good_content_is_read(name: str, root: Path) -> None:
    assert 2 not in attack(name, root, formats_now()[name].good)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_content_does_nothing(name: str, root: Path) -> None:
    campaign(name, root, EXAMPLES, number=1)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_hostile_content_does_nothing_for_long(name: str, root: Path) -> None:
    campaign(name, root, int(os.environ.get("ATTNFUZZ_HOSTILE_EXAMPLES", LONG_EXAMPLES)), number=2)
    sys.stderr.write(f"{name}: {TRIED}\n")


@examples(30, 2000)
def test_hostile_calibrations_are_read_or_refused(tmp_path: Path, count: int) -> None:
    shipped = json.loads(next(calibration.SHIPPED.glob("*.json")).read_text())
    path = tmp_path / "calibration.json"

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @seed(1)
    @given(hostile_bytes(hostile_json(shipped)))
    def example(content: bytes) -> None:
        path.write_bytes(content)
        with contextlib.suppress(calibration.CalibrationError):
            calibration.load(path)

    example()
