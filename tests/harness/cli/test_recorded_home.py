"""A home as commit 9b40fa7 left it, its logs in the form of version 3: what it holds is read as it was meant.

It has three campaigns: one that found a bug, one with a ledger that knows it, and one that was killed while it
confirmed a suspect, resumed, and killed again. What that commit's folds gave was written
down with them.
"""

import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from command_line import Attnfuzz
from fake_campaign import ScriptedJobs, begin, logged

from attnfuzz.harness.campaign.events import CampaignResumed, CampaignStarted, SliceStarted
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.campaign.log import EventLog, read_log
from attnfuzz.harness.campaign.resume import last_campaign, plan_again
from attnfuzz.harness.campaign.schedule import Schedule
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.given import case_at
from attnfuzz.harness.corpus import Corpus
from attnfuzz.harness.findings.archive import read_records
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.messages import SliceKind
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference import case_file

RECORDED = Path(__file__).parents[2] / "data" / "home-9b40fa7.tar.gz"
FOUND, KNOWN, KILLED = "20261122-175102", "20261122-175148", "20261122-175227"
BEFORE, OTHER = "trtllm_mha@21649-before", "trtllm_mha@24566"
OF_BEFORE, OF_OTHER = f"{BEFORE}-IllegalAccess-d54b45866a", f"{OTHER}-IllegalAccess-8d7e471976"
REASON = "The page table is read past its end: SGLang PR 21649"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The home, in a folder of its own beside its ledger, which its log names from there."""
    monkeypatch.chdir(tmp_path)
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
    return Home(tmp_path / "home")


@pytest.mark.parametrize(
    ("campaign", "backend", "counted", "slices", "pairs", "findings"),
    [
        (FOUND, BEFORE, (30, 46, 16, 19803, False), 2, 9456, [(OF_BEFORE, State.NEW, None)]),
        (KNOWN, BEFORE, (10, 13, 3, 2526, False), 3, 6458, [(OF_BEFORE, State.OPEN, REASON)]),
        (KILLED, OTHER, (25, 51, 24, 8222, True), 2, 7600, [(OF_OTHER, State.NEW, None)]),
    ],
)
def test_campaigns_stand_where_they_stood(
    home: Home,
    campaign: str,
    backend: str,
    counted: tuple[int, ...],
    slices: int,
    pairs: int,
    findings: list[tuple[str, State, str | None]],
) -> None:
    standing = Standing.of(read_log(home.log(campaign)))
    score = standing.scores[backend]
    tally = score.tally
    assert (tally.searched, tally.cases, tally.deaths, tally.rows, tally.shrinking) == counted
    assert (score.slices, len(score.pairs)) == (slices, pairs)
    assert [(each.name, each.state, each.known) for each in standing.findings] == findings


def test_margins_and_phases_are_those_of_before(home: Home) -> None:
    tally = Standing.of(read_log(home.log(KILLED))).scores[OTHER].tally
    assert tally.margins == pytest.approx(
        {"T1": 0.992402, "T2": 0.357856, "T3": 0.0, "T4": 0.123721, "T5": 0.953446, "T6": 0.0}, abs=1e-6
    )
    assert tally.phases == pytest.approx(
        {"place": 0.37005, "kernel": 0.065368, "reference": 0.293256, "judge": 0.187558}, abs=1e-6
    )


def test_findings_and_spent_examples_of_a_recorded_log_are_known(home: Home) -> None:
    events = read_log(home.log(KILLED))
    knowledge, schedule = Knowledge(), Schedule([OTHER], examples=2000, seed=3)
    for event in events:
        knowledge(event)
        schedule(event)
    assert knowledge.findings.keys() == {OF_OTHER}
    assert knowledge.replayed == {7871564472491636069, 11852817123776690000}
    assert knowledge.drawing
    assert [(key.kind, key.place) for key, _ in knowledge.pending] == [(Kind.ILLEGAL_ACCESS, "k_cache")]
    assert [(each.kind, each.place) for each in knowledge.passed_over(OTHER)] == [(Kind.ILLEGAL_ACCESS, "seq_lens")]
    task = schedule.next_slice([], {})
    assert task is not None
    assert (task.index, task.seed, task.examples) == (1, 16346841980549391888, 250)


def test_the_campaign_that_was_killed_is_resumed(home: Home) -> None:
    with home.log(KILLED).open("ab") as log:
        log.write(b'{"event":"Prog')
    past = last_campaign(home)
    assert (past.campaign, past.finished, past.torn_bytes) == (KILLED, False, 14)
    asked = plan_again(past, home, jobs=None, ray=None, ledger=None, begun=0.0)
    assert (asked.backends, asked.examples, asked.seed, asked.jobs) == ((OTHER,), 2000, 3, 1)
    assert asked.ledger == Path("known.toml")
    jobs = ScriptedJobs([])
    campaign = begin(
        asked,
        jobs,
        campaign=KILLED,
        corpus=Corpus(home.corpus),
        past_events=past.events,
        torn_bytes=past.torn_bytes,
    )
    now = list(islice(campaign.events(), 2))
    resumed, begun = now
    assert isinstance(resumed, CampaignResumed)
    assert isinstance(begun, SliceStarted)
    assert (begun.kind, begun.index, begun.examples) == (SliceKind.ONCE_MORE, None, 1)
    with EventLog(home.log(KILLED), torn_bytes=past.torn_bytes) as log:
        for event in now:
            log(event)
    assert read_log(home.log(KILLED)) == logged([*past.events, *now])


def test_findings_are_listed_and_shown(attnfuzz: Attnfuzz, home: Home) -> None:
    records, troubles = read_records(home.findings)
    assert not troubles
    assert {record.name: record.state for record in records} == {OF_BEFORE: State.OPEN, OF_OTHER: State.NEW}
    listed = attnfuzz("findings", "list", "--home", "home")
    assert listed.code == 0, listed.err
    assert "open   2026-11-22 17:52 UTC  reads past cum_seq_lens_q" in listed.out
    shown = attnfuzz("findings", "show", OF_BEFORE, "--home", "home")
    assert shown.code == 0, shown.err
    assert "0 bytes past the end" in shown.out


def test_reports_are_written(attnfuzz: Attnfuzz, home: Home) -> None:
    recorded = (home.folder(FOUND) / "summary.md").read_text()
    ran = attnfuzz("report", "--campaign", f"home/campaigns/{FOUND}")
    assert ran.code == 0, ran.err
    # The release that recorded it did not count drawn cases, and called runs cases.
    counts = recorded.partition("## Backends\n")[2].partition("` | ")[2]
    assert counts
    assert f"` | 30 | {counts}" in (home.folder(FOUND) / "summary.md").read_text()
    ran = attnfuzz("report", "--home", "home")
    assert ran.out.startswith("Not finished: 1 new finding in 25 cases over 32 s so far.")


def test_the_corpus_is_run_again(home: Home) -> None:
    corpus = Corpus(home.corpus)
    assert not corpus.troubles
    assert {backend: len(list(corpus.replays(backend))) for backend in (BEFORE, OTHER)} == {BEFORE: 39, OTHER: 23}


def case_files(home: Home) -> Iterator[Path]:
    """Every case that the home has."""
    yield from home.corpus.glob("*/*.json")
    for name in ("case.json", "first.json"):
        yield from home.findings.glob(f"*/{name}")


def test_cases_can_be_replayed_and_are_written_as_they_were(home: Home, tmp_path: Path) -> None:
    files = list(case_files(home))
    assert len(files) == 67
    for path in files:
        case_file.save(tmp_path / "again.json", case_at(path))
        assert (tmp_path / "again.json").read_bytes() == path.read_bytes(), path.name
    started = read_log(home.log(KILLED))[0]
    assert isinstance(started, CampaignStarted)
    assert case_at(home.findings / OF_OTHER).backend == started.backends[0]
