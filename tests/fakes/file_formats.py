"""The files that commands read: a valid one of each kind with every optional field, hostile ones, and the commands."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from campaign_events import checked, filed, finished, started
from fake_archive import FINGERPRINT, archive, found
from fake_search import decode, observed
from harness_cases import decode_case
from hostile_values import hostile_bytes, hostile_json, hostile_lines, hostile_toml, toml
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.campaign import events
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.releases.outcomes import Ending
from attnfuzz.harness.releases.results import Cell, FailureRow, Searched, SweepPlan, SweepResults
from attnfuzz.harness.releases.wanted import Wanted
from attnfuzz.harness.search.messages import Tally
from attnfuzz.harness.verdict.failures import Access, Kind
from attnfuzz.reference import case_file
from attnfuzz.reference.calls import CallAnswer, CallCase, Drawn, Expected, View

CASE = decode_case("torch_sdpa", 6, 9, padded=2)
SHORT = case_file.load(Path(__file__).parents[1] / "harness/short_seq_lens.json")
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
    replace(started("torch_sdpa", torch="2.13"), ledger="known.toml"),
    events.SliceStarted(at=1.0, job=0, backend="torch_sdpa", index=0, seed=1, examples=5),
    events.Progress(
        at=2.0, backend="torch_sdpa", tally=Tally(searched=5, cases=5, deaths=1, margins={"T1": 0.5}, phases={"a": 1.0})
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
    events.JobReady(at=2.0, job=0),
    events.CaseAwaited(at=60.0, job=0, seconds=18.0),
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


@dataclass(frozen=True)
class Format:
    """A kind of file: where it lies, what is in a good one, in hostile ones, and the commands that read it."""

    path: str
    good: bytes
    content: SearchStrategy[bytes]
    commands: Sequence[Sequence[str]]


ON_FINDINGS = (
    ("findings", "list", "--home", "out"),
    ("findings", "show", "EmptyRow", "--home", "out"),
    ("report", "--home", "out", "--html", "r.html"),
)
ON_CASE = (
    ("replay", "case.json"),
    ("triage", "case.json"),
    ("triage", "case.json", "--json", "-"),
    ("shrink", "case.json", "-o", "small.json", "--force"),
    ("export", "case.json", "-o", "script.py"),
    ("export", "case.json", "--for", "flashinfer", "-o", "script.py"),
    ("export", "case.json", "--issue", "-o", "issue.md"),
    ("corpus", "add", "case.json", "--home", "other"),
)
ON_CALLS = ON_CASE[:-1]
ON_LOG = (
    ("report", "--home", "out"),
    ("report", "--home", "out", "--issue", "a-finding", "issue.md"),
    ("compare", "out", "out", "--markdown", "c.md"),
    ("compare", "before", "out"),
    ("fuzz", "--resume", "--home", "out"),
)
ON_CORPUS = (
    ("corpus", "list", "--home", "out"),
    ("corpus", "merge", "out", "--home", "other"),
    ("corpus", "prune", "--home", "out"),
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
    ledger = ("fuzz", "--backend", "torch_sdpa", "--examples", "1", "--ledger", "known.toml", "--home", "new")
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
        "sweep": of_json("out/sweep.json", plain(RESULTS), (("sweep", "--resume", "--home", "out"),)),
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
