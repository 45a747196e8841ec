"""What a campaign looks like, pinned: on a terminal, in a pipe, and at its end."""

import io

from fake_search import decode, observed
from msgspec.structs import replace
from rich.console import Console

from attnfuzz.harness.campaign.events import (
    CampaignFinished,
    CampaignStarted,
    Event,
    FindingFiled,
    GapSeen,
    Progress,
    SliceFinished,
    SuspectSeen,
    UnconfirmedKept,
)
from attnfuzz.harness.cli.display import display_on
from attnfuzz.harness.cli.scoreboard import Scoreboard
from attnfuzz.harness.cli.summary import summarise
from attnfuzz.harness.cli.wording import clock, count
from attnfuzz.harness.failures import Kind

BEFORE = "trtllm_mha@21649-before"
CASE = replace(decode(5), backend=BEFORE)
FAULT = observed(Kind.ILLEGAL_ACCESS, "query")
STARTED = CampaignStarted(
    at=0, attnfuzz="1", backends=(BEFORE, "torch_sdpa"), examples=9, seconds=None, seed=7, jobs=2, contract="declared"
)
PROGRESS = Progress(at=1, backend=BEFORE, cases=1234, deaths=3, shrinking=True)
FILED = FindingFiled(at=6.1, case=CASE, observation=FAULT, path="out/findings/" + "x" * 70, report="the report")
FINISHED = CampaignFinished(at=9, interrupted=False)


def console(*, terminal: bool, width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, force_terminal=terminal, color_system=None)


def written(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def show(on: Console, *events: Event) -> Scoreboard:
    board = Scoreboard()
    with display_on(on, board) as display:
        for event in events:
            board(event)
            display(event)
    return board


def test_a_pipe_gets_a_line_for_each_failure_and_one_every_few_seconds() -> None:
    pipe = console(terminal=False, width=120)
    show(pipe, STARTED, PROGRESS, SuspectSeen(at=2, case=CASE, observation=FAULT), FILED, FINISHED)
    lines = written(pipe).splitlines()
    assert lines[:2] == [
        f"2 s: Suspect: IllegalAccess at query in {BEFORE}, decode",
        f"6 s: Finding: IllegalAccess at query in {BEFORE}, decode",
    ]
    assert lines[2].startswith(f"6 s: {BEFORE} 1,234, torch_sdpa 0 cases, ")
    assert len(lines) == 3


def test_a_terminal_gets_a_table_that_is_gone_at_the_end() -> None:
    terminal = console(terminal=True)
    show(terminal, STARTED, PROGRESS, FINISHED)
    text = written(terminal)
    assert "cases/s" in text
    assert f"shrinking a failure of {BEFORE}" in text
    assert text.endswith("\x1b[2K") or "\x1b[1A\x1b[2K" in text


def test_a_finding_ends_with_its_replay_line_unbroken() -> None:
    for width in (80, 120):
        pipe = console(terminal=False, width=width)
        summarise(pipe, show(console(terminal=False), STARTED, PROGRESS, FILED, FINISHED))
        lines = written(pipe).splitlines()
        assert "the report" in lines
        assert f"  attnfuzz replay out/findings/{'x' * 70}" in lines
        assert lines[-1].startswith("1 finding in 1,234 cases in ")
        assert lines[-1].endswith("(seed 7).")


def test_a_clean_campaign_says_so() -> None:
    pipe = console(terminal=False)
    summarise(pipe, show(console(terminal=False), STARTED, PROGRESS, FINISHED))
    lines = written(pipe).splitlines()
    assert lines[0].split() == ["backend", "cases", "cases/s", "deaths", "findings"]
    assert lines[1].split()[::2] == [BEFORE, lines[1].split()[2], "0"]
    assert lines[-1].startswith("No findings in 1,234 cases in ")


def test_what_is_no_finding_is_listed_apart() -> None:
    finished = SliceFinished(
        at=1, backend=BEFORE, index=0, seed=1, examples=1, cases=1, deaths=0, seconds=1, unsupported={"no sinks": 3}
    )
    kept = UnconfirmedKept(at=1, case=CASE, observation=FAULT, path="out/unconfirmed/x", reason="it went away")
    gap = GapSeen(at=1, case=CASE, observation=observed(gap=True))
    pipe = console(terminal=False, width=120)
    summarise(pipe, show(console(terminal=False), STARTED, kept, gap, finished, FINISHED))
    text = written(pipe)
    assert f"Unconfirmed: IllegalAccess at query in {BEFORE}, decode: it went away" in text
    assert "out/unconfirmed/x" in text
    assert f"Gap: OutputMismatch at out in {BEFORE}, decode: wrong" in text
    assert f"Unsupported by {BEFORE}, 3 times: no sinks" in text
    assert "No findings, 1 gap that only the strict contract breaks in 0 cases" in text


def test_numbers_read_well() -> None:
    assert [count(1, "case"), count(1200, "case")] == ["1 case", "1,200 cases"]
    assert [clock(0.4), clock(99), clock(185), clock(4200)] == ["0 s", "99 s", "3:05", "1:10:00"]
