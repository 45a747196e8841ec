"""What a campaign looks like, pinned: on a terminal, in a pipe, and at its end."""

import io

import pytest
from campaign_events import checked, filed, finished, slice_finished, started, without_sinks
from fake_search import decode, observed
from msgspec.structs import replace
from rich.console import Console

from attnfuzz.harness.campaign.events import (
    CaseAwaited,
    CausesMerged,
    CoverageGrew,
    Event,
    FindingMinimized,
    GapSeen,
    JobRestarted,
    LedgerRemark,
    Progress,
    SliceStarted,
    SuspectSeen,
    Trouble,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.standing import Standing, TimelinePoint
from attnfuzz.harness.cli.display import display_on, say, summarise
from attnfuzz.harness.cli.status import BARS, Status, recent_rate, score_table, trend
from attnfuzz.harness.cli.terminal import print_sentences
from attnfuzz.harness.families.attention import AttentionFamily
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.messages import SliceKind, Tally
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint

BEFORE = "trtllm_mha@21649-before"
CASE = replace(decode(5), backend=BEFORE)
FAULT = observed(Kind.ILLEGAL_ACCESS, "query")
SAME = Fingerprint.of(BEFORE, FAULT)
STARTED = replace(started(BEFORE, "torch_sdpa"), seconds=120.0)
PROGRESS = Progress(at=1, backend=BEFORE, tally=Tally(searched=1000, cases=1234, deaths=3, shrinking=True))
GREW = CoverageGrew(at=2, backend=BEFORE, searched=9, pairs=(("a=1", "b=1"), ("a=1", "b=2"), ("a=2", "b=1")))
FILED = replace(filed(CASE, observation=FAULT, report="the report"), at=6.1, path="out/findings/" + "x" * 70)
CHECKED = replace(checked(CASE, State.OPEN, observation=FAULT), at=1, times=2)
SUSPECT = SuspectSeen(at=2, fingerprint=SAME, case=CASE, observation=FAULT)
FINISHED = finished(9)
POSSIBLE = frozenset({("a=1", "b=1"), ("a=1", "b=2"), ("a=2", "b=1"), ("a=2", "b=2")})


@pytest.fixture(autouse=True)
def small_case_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttentionFamily, "possible_pairs", lambda *_: POSSIBLE)


def searching(job: int, backend: str, kind: SliceKind = SliceKind.DRAWN) -> SliceStarted:
    return SliceStarted(at=2, job=job, backend=backend, kind=kind, seed=1, examples=250)


def console(*, terminal: bool = False, width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, force_terminal=terminal, color_system=None)


def written(on: Console) -> list[str]:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue().splitlines()


def show(on: Console, *events: Event) -> Standing:
    standing = Standing()
    with display_on(on, standing) as display:
        for event in events:
            standing(event)
            display(event)
    return standing


def status(*events: Event, width: int = 80, at: float = 30) -> list[str]:
    pipe = console(width=width)
    pipe.print(Status(Standing.of(events), at=at))
    return written(pipe)


def summary(*events: Event, width: int = 120) -> list[str]:
    pipe = console(width=width)
    summarise(pipe, None, Standing.of(events))
    return written(pipe)


def test_sentences_on_a_terminal_end_lines_between_words_and_keep_long_names() -> None:
    on, name = console(terminal=True, width=20), "out/findings/of-one-long-name"
    print_sentences(on, f"A suspect is kept in {name} for now.")
    assert written(on) == ["A suspect is kept in", name, "for now."]
    pipe = console(width=20)
    print_sentences(pipe, "A suspect is kept in out for now.")
    assert written(pipe) == ["A suspect is kept in out for now."]


def test_a_campaign_that_has_not_begun_has_a_status() -> None:
    assert status()[0] == "Starting"


def test_a_pipe_gets_a_line_for_each_failure() -> None:
    pipe = console()
    show(pipe, STARTED, PROGRESS, replace(CHECKED, state=State.FIXED), CHECKED, SUSPECT, FILED, FINISHED)
    assert written(pipe) == [
        f"1 s: Fixed: accesses outside query ({BEFORE}, decode)",
        f"1 s: Open finding: accesses outside query ({BEFORE}, decode)",
        f"2 s: Suspect: accesses outside query ({BEFORE}, decode)",
        f"6 s: Finding: accesses outside query ({BEFORE}, decode)",
    ]


def test_a_pipe_gets_one_line_for_each_trouble_and_restart() -> None:
    pipe = console(width=40)
    show(pipe, STARTED, Trouble(at=1, text="no [corpus]"), JobRestarted(at=2, job=1, text="killed by SIGKILL"))
    assert written(pipe) == ["1 s: Trouble: no [corpus]", "2 s: Job 1 was restarted: killed by SIGKILL"]


def test_a_pipe_gets_a_line_every_ten_seconds_and_then_every_minute() -> None:
    pipe = console(width=40)
    show(pipe, STARTED, GREW, *(replace(PROGRESS, at=float(at)) for at in range(1, 301)))
    times = [line.split(": ")[0] for line in written(pipe)]
    assert times == ["10 s", "20 s", "30 s", "40 s", "50 s", "60 s", "2:00", "3:00", "4:00", "5:00"]
    first = written(pipe)[0]
    assert first == f"10 s: 10,000 cases, 1,234 runs/s now. Coverage: {BEFORE} 75%, torch_sdpa 0%"


def test_a_long_wait_for_a_case_is_shown_until_it_is_over() -> None:
    waits = CaseAwaited(at=12.0, job=0, seconds=8.0)
    pipe = console(width=40)
    show(pipe, STARTED, waits, replace(waits, at=22.0, seconds=18.0), replace(waits, at=32.0, seconds=28.0, over=True))
    assert [line.partition(". Coverage")[0] for line in written(pipe)] == [
        "12 s: 0 cases, 0 runs/s now, waiting 8 s for a case",
        "22 s: 0 cases, 0 runs/s now, waiting 18 s for a case",
        "32 s: 0 cases, 0 runs/s now",
    ]
    assert "waiting 11 s for a case" in "\n".join(status(STARTED, waits, at=15.0))
    assert "waiting" not in "\n".join(status(STARTED, waits, replace(waits, over=True), at=15.0))


def test_a_line_about_many_backends_has_their_lowest_and_highest_coverage() -> None:
    pipe = console(width=40)
    many = replace(STARTED, backends=(*STARTED.backends, *(f"another:{number}" for number in range(5))))
    show(pipe, many, GREW, replace(PROGRESS, at=10.0))
    assert written(pipe) == ["10 s: 1,000 cases, 123 runs/s now. Coverage: 0% to 75% of 7 backends"]


def test_a_terminal_gets_a_status_that_is_gone_at_the_end() -> None:
    terminal = console(terminal=True)
    show(terminal, STARTED, PROGRESS, FINISHED)
    text = "\n".join(written(terminal))
    assert "runs/s" in text
    assert text.endswith("\x1b[2K") or "\x1b[1A\x1b[2K" in text


def test_the_status_says_how_much_of_the_time_is_left() -> None:
    (budget, *_) = status(STARTED, PROGRESS)
    assert budget.endswith("  30 s of 2:00, 90 s left")


def test_the_status_says_how_many_of_the_examples_are_left() -> None:
    (budget, *_) = status(replace(STARTED, seconds=None, examples=2000), PROGRESS)
    assert budget.endswith("  1,000 of 4,000 cases, 30 s, about 90 s left")


def test_the_status_says_how_long_ago_something_new_was_seen() -> None:
    assert status(STARTED, PROGRESS)[1] == "no new coverage yet, no new finding yet"
    assert status(STARTED, GREW, FILED)[1] == "last new coverage 28 s ago, last new finding 23 s ago: 1 finding"


def test_the_status_and_the_lines_of_a_pipe_count_causes() -> None:
    symptoms = (*without_sinks(CASE, needs=("sinks",)), FILED)
    causes = "2 causes (5 findings)"
    assert status(STARTED, *symptoms)[1].endswith(f" ago: {causes}")
    pipe = console(width=40)
    show(pipe, STARTED, *symptoms, replace(PROGRESS, at=9000.0))
    assert written(pipe)[-1].endswith(f". {causes}")


def test_the_status_shows_the_activity_of_jobs() -> None:
    restarted = JobRestarted(at=2, job=1, text="killed")
    tasks = (searching(0, BEFORE), searching(1, "torch_sdpa", SliceKind.KEPT))
    assert status(STARTED, PROGRESS, *tasks)[2].startswith("2 jobs (1 replaying, 1 shrinking), ")
    assert status(STARTED, PROGRESS, *tasks, restarted)[2].startswith("2 jobs (shrinking), 1 restart, ")
    assert status(STARTED, PROGRESS, *tasks, width=120)[-1].endswith("  replaying")


@pytest.mark.parametrize(
    ("kind", "verb"),
    [
        *zip(
            SliceKind,
            ("searching", "replaying", "confirming", "comparing", "minimizing", "writing scripts"),
            strict=True,
        )
    ],
)
def test_each_kind_of_slice_has_a_verb(kind: SliceKind, verb: str) -> None:
    assert status(STARTED, searching(0, BEFORE, kind))[2].startswith(f"2 jobs ({verb}), ")


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_status_drops_columns_and_never_wraps(width: int) -> None:
    long = "some/folder/with_a_long_name/my_backend.py:MINE"
    started = replace(STARTED, backends=(long, "torch_sdpa"))
    progress = replace(PROGRESS, backend="torch_sdpa")
    lines = status(started, progress, searching(0, "torch_sdpa"), width=width)
    assert len(lines) == 7
    assert max(map(len, lines)) <= width
    titles = lines[4].split()
    assert {"backend", "cases", "coverage", "findings"} <= set(titles)
    assert [title for title in ("now", "deaths", "runs/s") if title in titles] == {
        40: [],
        60: ["runs/s"],
        80: ["runs/s"],
        120: ["now", "deaths", "runs/s"],
    }[width]
    assert lines[5].split()[0].endswith(".py:MINE")


def test_coverage_is_whole_only_when_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = tuple((str(number), "b") for number in range(2000))
    monkeypatch.setattr(AttentionFamily, "possible_pairs", lambda *_: frozenset(grown))
    known = replace(STARTED, capabilities={BEFORE: STARTED.capabilities[BEFORE]})
    standing = Standing.of([known, CoverageGrew(at=1, backend=BEFORE, searched=1, pairs=grown[:-1])])
    pipe = console()
    pipe.print(score_table(standing, width=80, live=False))
    assert written(pipe)[1].split()[3] == "99%"
    assert written(pipe)[2].split()[3] == "-"


def test_the_rate_of_now_is_that_of_the_last_minute() -> None:
    quick = [replace(PROGRESS, at=float(at), tally=Tally(cases=100)) for at in range(1, 101)]
    slow = [replace(PROGRESS, at=float(at), tally=Tally(cases=10)) for at in range(101, 181)]
    assert recent_rate(Standing.of([STARTED, *quick])) == pytest.approx(100)
    assert recent_rate(Standing.of([STARTED, *quick, *slow])) == pytest.approx(10)


def test_a_trend_has_a_bar_for_each_stretch_of_time() -> None:
    samples = [TimelinePoint(at=10.0 * i, runs=10 * i * i, deaths=0, pairs=0, findings=0) for i in range(200)]
    bars = trend(samples)
    assert 10 < len(bars) < 24
    assert list(bars) == sorted(bars, key=BARS.index)
    assert bars[-1] == BARS[-1]
    assert not trend(samples[:2])


def test_a_finding_ends_with_its_replay_line_unbroken() -> None:
    for width in (80, 120):
        lines = summary(STARTED, PROGRESS, FILED, FINISHED, width=width)
        assert "Finding 1 of 1, new" in lines[0]
        assert "the report" in lines
        assert f"  attnfuzz replay out/findings/{'x' * 70}" in lines
        assert lines[-1] == "1 new finding in 1,000 cases over 9 s (seed 7)."


@pytest.mark.parametrize("width", [80, 120])
def test_a_cause_is_shown_with_its_needs_backends_and_modes(width: int) -> None:
    found = without_sinks(CASE, replace(CASE, backend="torch_sdpa"))
    lines = summary(STARTED, PROGRESS, *found, FINISHED, width=width)
    assert " Cause 1 of 1, new: 8 failures " in lines[0]
    title = f"computes a wrong output with sinks ({BEFORE}, torch_sdpa, 2 modes)"
    assert " ".join("\n".join(lines[1:]).split()).startswith(f"{title} a report")
    first = lines.index("a report")
    assert [line.rstrip() for line in lines[first : first + 9]] == [
        "a report",
        "",
        "needs     sinks",
        f"backends  {BEFORE}, torch_sdpa",
        "modes     decode, verify",
        "",
        f"{'failure':21}  {'backends':35}  modes",
        f"OutputMismatch at out  {BEFORE}, torch_sdpa  decode, verify",
        f"LseMismatch at lse     {BEFORE}, torch_sdpa  decode, verify",
    ]
    assert "  attnfuzz replay out/findings/sinks" in lines
    assert max(map(len, lines)) <= width
    assert lines[-1] == "1 new cause (8 failures) in 1,000 cases over 9 s (seed 7)."


def test_a_terminal_gets_lines_that_end_between_words() -> None:
    narrow = console(terminal=True, width=60)
    first, *_ = without_sinks(CASE)
    say(narrow, first)
    assert [line.rstrip() for line in written(narrow)] == [
        "60 s: Finding: computes a wrong output with sinks",
        f"({BEFORE}, decode)",
    ]


def test_a_failure_of_a_cause_that_is_on_file_says_so() -> None:
    pipe = console()
    first, second, *_ = without_sinks(CASE)
    show(pipe, STARTED, first, second, CausesMerged(at=61.0, name="one", cause="two"))
    assert [line for line in written(pipe) if "Coverage" not in line] == [
        f"60 s: Finding: computes a wrong output with sinks ({BEFORE}, decode)",
        f"60 s: Finding: computes a wrong LSE with sinks ({BEFORE}, decode), same cause as sinks",
        "61 s: Same cause: one and two",
    ]


def test_a_finding_that_is_minimized_says_so() -> None:
    pipe = console()
    first, *_ = without_sinks(CASE)
    show(pipe, STARTED, first, FindingMinimized(at=61.0, name=first.name, finding=replace(first, name="smaller")))
    assert f"61 s: Minimized: computes a wrong output with sinks ({BEFORE}, decode)" in written(pipe)


def test_an_open_finding_says_how_often_it_failed() -> None:
    lines = summary(STARTED, PROGRESS, CHECKED, FILED, FINISHED)
    assert "Finding 2 of 2, open" in "\n".join(lines)
    assert "found by an earlier campaign; failed in 2 of 3 runs of this one" in lines
    assert "  attnfuzz replay out/findings/an-old-finding" in lines
    assert lines[-1].startswith("1 new finding, 1 open, in 1,000 cases")


def test_findings_without_work_take_one_line_each() -> None:
    known = replace(FILED, known="upstream knows", path="out/findings/known")
    fixed = replace(CHECKED, state=State.FIXED)
    remark = LedgerRemark(at=8, entry=2, title="Hang in x", text="not met yet")
    lines = summary(STARTED, known, fixed, remark, FINISHED)
    words = f"accesses outside query ({BEFORE}, decode)"
    assert f"Known: {words}: upstream knows. attnfuzz replay out/findings/known" in lines
    assert f"Fixed: {words}: passes now. attnfuzz replay out/findings/an-old-finding" in lines
    assert "Ledger: entry 2 (Hang in x): not met yet" in lines
    assert "the report" not in lines


def test_a_clean_campaign_says_so() -> None:
    lines = summary(STARTED, PROGRESS, FINISHED)
    assert lines[0].split() == ["backend", "cases", "runs/s", "coverage", "pairs", "deaths", "findings"]
    assert lines[1].split() == [BEFORE, "1,000", "137", "0%", "0", "of", "4", "3", "0"]
    assert lines[-1] == "No findings in 1,000 cases over 9 s (seed 7)."


def test_unconfirmed_failures_gaps_and_rejections_are_listed_apart() -> None:
    finished = slice_finished(BEFORE, unsupported={"no sinks": 3})
    kept = UnconfirmedKept(
        at=1, fingerprint=SAME, case=CASE, observation=FAULT, path="out/unconfirmed/x", reason="it went away"
    )
    gap = GapSeen(at=1, fingerprint=SAME, case=CASE, observation=observed(gap=True))
    text = "\n".join(summary(STARTED, PROGRESS, kept, gap, finished, FINISHED))
    assert f"Unconfirmed: accesses outside query ({BEFORE}, decode): it went away. Kept in out/unconfirmed/x" in text
    assert f"Gap: computes a wrong output ({BEFORE}, decode): wrong" in text
    assert f"Unsupported by {BEFORE}, 3 times: no sinks" in text
    assert "No findings in 1,000 cases" in text
