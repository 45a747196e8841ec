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
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest import mock

import msgspec
import pytest
from campaign_events import checked, filed, finished, started
from fake_archive import FINGERPRINT, archive, found
from fake_search import decode, observed
from harness_cases import decode_case
from hostile_values import hostile_bytes, hostile_json, hostile_lines, hostile_toml, toml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.bisect.outcome import Ending
from attnfuzz.harness.campaign import events
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.cli.exits import Exit
from attnfuzz.harness.cli.main import main
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.harness.defects.results import DefectScore
from attnfuzz.harness.defects.search import Kill, SearchOutcome
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.shrink import Shrunk
from attnfuzz.harness.sweep.results import Cell, FailureRow, Searched, SweepPlan, SweepResults
from attnfuzz.harness.sweep.wanted import Wanted
from attnfuzz.harness.triage import Blame, Triage
from attnfuzz.harness.verdict.failures import Access, Kind, Verdict
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference import calibration, case_file
from attnfuzz.reference.calls import CallAnswer, CallCase, Drawn, Expected, View
from attnfuzz.reference.case_file import AnyCase

pytestmark = pytest.mark.slow

MOST_SECONDS = 30
MOST_BYTES_MORE = 1 << 30
EXAMPLES = 20
LONG_EXAMPLES = 4000

CASE = decode_case("torch_sdpa", 6, 9, padded=2)
SHORT = case_file.load(Path(__file__).parents[1] / "short_seq_lens.json")
assert isinstance(SHORT, CallCase)
CALLS: CallCase = SHORT
FAILURE = replace(observed(), access=Access(kind="read", offsets={"q": 3}), margin=7.0, tier="T1")
NAME = "20260501-043000"


def plain(value: object) -> Any:
    """JSON content of a value, with the optional fields."""
    return json.loads(msgspec.json.encode(value))


def full_calls() -> Any:
    """A case of calls with every kind of content."""
    view = View(buffer="query", shape=(1, 1, 8), stride=(8, 8, 1))
    expected = Expected(first_row=0, query=view, key=view, value=view)
    answer = CallAnswer(out=view, requests=(expected,), bmm1_scale=1.5, bmm2_scale=1.0, window_left=3, soft_cap=2.0)
    query = replace(CALLS.buffers[0], values=None, drawn=Drawn(seed=3, mean=1.0, std=2.0))
    (call,) = CALLS.calls
    write = replace(CALLS.buffers[0], values=(1,), size=1, offset=1)
    case = replace(
        CALLS,
        buffers=(query, *CALLS.buffers[1:]),
        calls=(replace(call, writes=(write,)),),
        answer=answer,
        notes=("a note",),
        mode="decode",
    )
    return {"format": "attnfuzz-case", "version": 1} | plain(case)


def full_case() -> Any:
    return {"format": "attnfuzz-case", "version": 1} | plain(CASE)


CASE_OF_HOME = replace(decode(5), backend="torch_sdpa")
OF_HOME = replace(FINGERPRINT, backend="torch_sdpa")
EVENTS: tuple[events.Event, ...] = (
    replace(started("torch_sdpa", torch="2.13"), ledger="known.toml", database="examples"),
    events.SliceStarted(at=1.0, job=0, backend="torch_sdpa", index=0, seed=1, examples=5),
    events.Progress(
        at=2.0, backend="torch_sdpa", searched=5, cases=5, deaths=1, margins={"T1": 0.5}, phases={"a": 1.0}
    ),
    events.CoverageGrew(at=3.0, backend="torch_sdpa", searched=5, pairs=(("a=1", "b=2"),)),
    events.CaseKept(at=3.0, backend="torch_sdpa", case_id="0" * 12, why="coverage"),
    events.SuspectSeen(at=4.0, fingerprint=OF_HOME, case=CASE_OF_HOME, observation=FAILURE),
    filed(CASE_OF_HOME, observation=FAILURE),
    checked(CASE_OF_HOME, State.OPEN),
    checked(CASE_OF_HOME, State.FIXED, "another"),
    events.AlreadyFiled(at=61.0, fingerprint=OF_HOME, name="a-finding"),
    events.UnconfirmedKept(
        at=62.0,
        fingerprint=OF_HOME,
        case=CASE_OF_HOME,
        observation=FAILURE,
        path="out/unconfirmed/x",
        reason="gone",
    ),
    events.GapSeen(at=62.0, fingerprint=OF_HOME, case=CASE_OF_HOME, observation=FAILURE),
    events.SliceFinished(
        at=63.0,
        backend="torch_sdpa",
        index=0,
        seed=1,
        examples=5,
        cases=5,
        deaths=0,
        seconds=2.0,
        unsupported={"no": 2},
    ),
    events.LedgerRemark(at=64.0, entry=1, title="a title", text="a text"),
    events.Trouble(at=65.0, text="trouble"),
    events.JobRestarted(at=66.0, job=0, text="killed"),
    events.CampaignResumed(at=67.0, time=1777609900.0, environment={"torch": "2.13"}, jobs=2, torn_bytes=3),
    finished(interrupted=True),
)
LOG = sorted(EVENTS, key=lambda event: event.at)
WANTED = Wanted(
    name="a-failure", title="a title", kind="decoder", case=CASE, kinds=(Kind.HANG,), fingerprint=FINGERPRINT, where="k"
)
RESULTS = SweepResults(
    asked=SweepPlan(
        package="fake",
        releases=("1.0", "1.1"),
        kinds=("decoder",),
        examples=5,
        seconds=None,
        seed=1,
        jobs=1,
        given=(WANTED,),
    ),
    environment={"attnfuzz": "1", "torch": "2"},
    searched={"1.0": Searched(examples=5, cases=5, campaign=NAME)},
    unable={"x": "why"},
    rows=(
        FailureRow(
            wanted=WANTED,
            cells={
                "1.0": Cell(ending=Ending.FAILS, line="a line", case="cases/x.json", fingerprint=FINGERPRINT),
                "1.1": Cell(ending=Ending.PASSES),
            },
            resembles="another",
        ),
    ),
)
SCORE = DefectScore(
    attnfuzz="1.0",
    examples=2000,
    seeds=(1, 2),
    without=(Tier.T3,),
    killed=1,
    defects=2,
    searches=(
        SearchOutcome(
            defect="dies",
            seed=1,
            examples=5,
            seconds=0.1,
            unconfirmed=0,
            kill=Kill(by="T1", kind=Kind.OUTPUT_MISMATCH, place="out", mode="decode", also=("T2",)),
        ),
        SearchOutcome(defect="lives", seed=1, examples=2000, seconds=9.0, unconfirmed=1, kill=None),
    ),
)
ENTRY = {
    "backend": "torch_sdpa",
    "kind": "Hang",
    "reason": "known",
    "kernel": "k",
    "mode": "decode",
    "place": "out",
    "finding": "x",
    "features": ["padded"],
    "issue": "https://example.org",
    "added": "2026-01-01",
}


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
    "attnfuzz.harness.cli.replay.Runner": FakeRunner,
    "attnfuzz.harness.cli.shrink.Runner": FakeRunner,
    "attnfuzz.harness.cli.shrink.shrink": lambda case, *_, **__: Shrunk(case=case, observation=FAILURE, runs=1),
    "attnfuzz.harness.cli.triage.Runner": FakeRunner,
    "attnfuzz.harness.cli.triage.triage_of": triaged,
    "attnfuzz.harness.cli.triage.ask_tools": lambda *_: SimpleNamespace(said=(), missing=()),
    "attnfuzz.harness.export.shared_runner": FakeRunner,
    "attnfuzz.harness.cli.sweep.Runner": FakeRunner,
    "attnfuzz.harness.cli.sweep.Sweep": FakeSweep,
    "attnfuzz.harness.cli.sweep.reported": lambda *_: [],
    "attnfuzz.harness.campaign.run.prepare": lambda *_: None,
    "attnfuzz.harness.cli.campaign._run": lambda *_, **__: Exit.CLEAN,
}


@dataclass(frozen=True)
class Format:
    """A kind of file: where it lies, what is in a good one, in hostile ones, and the commands that read it."""

    path: str
    good: bytes
    content: SearchStrategy[bytes]
    commands: Sequence[Sequence[str]]


ON_FINDINGS = (
    ("findings", "list", "--out", "out"),
    ("findings", "show", "EmptyRow", "--out", "out"),
    ("report", "out", "--html", "r.html"),
)
ON_CASE = (
    ("replay", "case.json"),
    ("triage", "case.json"),
    ("triage", "case.json", "--json"),
    ("shrink", "case.json", "-o", "small.json", "--force"),
    ("export", "case.json", "-o", "script.py"),
    ("export", "case.json", "--for", "flashinfer", "-o", "script.py"),
    ("export", "case.json", "--issue", "-o", "issue.md"),
    ("corpus", "add", "case.json", "--corpus", "other"),
)
ON_CALLS = ON_CASE[:-1]
ON_LOG = (
    ("report", "out"),
    ("report", "out", "--issue", "a-finding", "issue.md"),
    ("report", "out", "out", "--markdown", "c.md"),
    ("report", "before", "out"),
    ("fuzz", "--resume", "out"),
)
ON_CORPUS = (
    ("corpus", "list", "--corpus", "out/corpus"),
    ("corpus", "merge", "out/corpus", "--corpus", "other"),
    ("corpus", "prune", "--corpus", "out/corpus"),
)
FINDING = "out/findings/EmptyRow"


def formats() -> dict[str, Format]:
    history = plain(replace_history())
    index = [
        {"format": "attnfuzz-corpus", "version": 1},
        {"case": case_file.case_id(CASE), "why": "margin", "time": 1.0, "margins": {"T1": 0.5}},
    ]
    texts = st.sampled_from(["a report", "\x1b[2J[/red]\0" * 9, "\u202e\x9b"])
    corpus = f"out/corpus/torch_sdpa/{case_file.case_id(CASE)}.json"
    ledger = ("fuzz", "--backend", "torch_sdpa", "--examples", "1", "--ledger", "known.toml", "--out", "new")
    score = ("report", "out", "--defects", "score.json")
    return {
        "case": of_json("case.json", full_case(), ON_CASE),
        "case of calls": of_json("case.json", full_calls(), ON_CALLS),
        "log": of_lines(f"out/campaigns/{NAME}/events.ndjson", plain(LOG), ON_LOG),
        "history": of_json(f"{FINDING}/finding.json", history, ON_FINDINGS),
        "case of a finding": of_json(f"{FINDING}/case.json", full_case(), ON_FINDINGS),
        "report of a finding": Format(f"{FINDING}/report.txt", b"a report", hostile_bytes(texts), ON_FINDINGS),
        "index": of_lines("out/corpus/index.ndjson", index, ON_CORPUS),
        "case of a corpus": of_json(corpus, full_case(), ON_CORPUS),
        "ledger": Format("known.toml", toml([ENTRY]).encode(), hostile_bytes(hostile_toml([ENTRY])), (ledger,)),
        "sweep": of_json("out/sweep.json", plain(RESULTS), (("sweep", "--resume", "out"),)),
        "score": of_json("score.json", plain(SCORE), (score,)),
    }


def of_json(path: str, content: Any, commands: Sequence[Sequence[str]]) -> Format:
    return Format(path, json.dumps(content).encode(), hostile_bytes(hostile_json(content)), commands)


def of_lines(path: str, lines: list[Any], commands: Sequence[Sequence[str]]) -> Format:
    good = "".join(f"{json.dumps(line)}\n" for line in lines)
    return Format(path, good.encode(), hostile_bytes(hostile_lines(lines)), commands)


def replace_history() -> Any:
    """The history of a finding that two nights saw."""
    with tempfile.TemporaryDirectory() as folder:
        path, _ = archive(Path(folder), "night 1", {"torch": "2.12"}).file(found(), FINGERPRINT)
        archive(Path(folder), "night 2", {"torch": "2.13"}).checked(path.name, fails=False)
        return msgspec.json.decode((path / "finding.json").read_bytes())


def make_home(root: Path) -> None:
    """What commands find beside the hostile file."""
    home = Home(root / "out")
    night = archive(home.path)
    for kind in (Kind.OUTPUT_MISMATCH, Kind.EMPTY_ROW):
        path, _ = night.file(
            replace(found(kind=kind), case=CASE_OF_HOME), replace(FINGERPRINT, backend="torch_sdpa", kind=kind)
        )
        path.rename(path.with_name(kind.value))
    for folder in (home, Home(root / "before")):
        log = folder.log(NAME)
        log.parent.mkdir(parents=True)
        log.write_bytes(msgspec.json.Encoder().encode_lines(LOG))
    Corpus(home.corpus).keep(CASE, why=Why.FAILURE)
    (root / "known.toml").write_text(toml([ENTRY]))


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
    *("index", "case of a corpus", "ledger", "sweep", "score"),
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


@settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@seed(1)
@given(st.data())
def test_hostile_calibrations_are_read_or_refused(data: st.DataObject) -> None:
    shipped = json.loads(next(calibration._SHIPPED.glob("*.json")).read_text())
    content = data.draw(hostile_bytes(hostile_json(shipped)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "calibration.json"
        path.write_bytes(content)
        with contextlib.suppress(calibration.CalibrationError):
            calibration.load(path)
