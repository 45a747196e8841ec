"""What `attnfuzz defects run` shows, pinned: while it runs, and at its end."""

import io

from campaign_events import filed, slice_finished, started
from fake_defect import defect
from fake_search import decode, observed
from msgspec.structs import replace
from rich.console import Console

from attnfuzz.harness.campaign.events import (
    Event,
    Progress,
    SliceStarted,
)
from attnfuzz.harness.cli.selftests.defects import print_scores, watching
from attnfuzz.harness.defects.results import DefectTally, enough
from attnfuzz.harness.defects.search import Kill, SearchOutcome
from attnfuzz.harness.search.messages import Tally
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.defects.defect import Layer

FAULT = Kill(by="guards", kind=Kind.ILLEGAL_ACCESS, place="query", mode="decode", also=())
WRONG = Kill(by="T1", kind=Kind.OUTPUT_MISMATCH, place="out", mode="decode", also=("T2", "T4"))


def outcome(kill: Kill | None, examples: int, seconds: float, unconfirmed: int = 0) -> SearchOutcome:
    return SearchOutcome(defect="", seed=1, examples=examples, seconds=seconds, unconfirmed=unconfirmed, kill=kill)


def score(name: str, layer: Layer, *outcomes: SearchOutcome) -> DefectTally:
    return DefectTally(defect(name, layer), outcomes)


ONE_SEED = [
    score("reads_beyond_the_end_of_its_queries", Layer.KERNEL, outcome(FAULT, 7, 0.25)),
    score("window_one_short", Layer.MASK, outcome(WRONG, 1234, 18.0)),
    score("window_one_long", Layer.MASK, outcome(None, 2000, 61.04, unconfirmed=2)),
]
THREE_SEEDS = [
    score("always", Layer.SINK, outcome(WRONG, 3, 0.1), outcome(WRONG, 5, 0.2), outcome(FAULT, 90, 2.0)),
    score("once", Layer.SINK, outcome(None, 2000, 9.0), outcome(FAULT, 20, 0.1), outcome(None, 2000, 9.0)),
]


def console(width: int, *, terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False, force_terminal=terminal, color_system=None)


def lines(on: Console) -> list[str]:
    assert isinstance(on.file, io.StringIO)
    return [line.rstrip() for line in on.file.getvalue().splitlines()]


def shown(scores: list[DefectTally], width: int = 80) -> list[str]:
    on = console(width)
    print_scores(on, scores)
    return lines(on)


def test_defects_are_grouped_by_layer_with_the_check_that_killed_them() -> None:
    assert shown(ONE_SEED, 120)[1:7] == [
        "defect                                 killed by                 examples  seconds",
        "kernel",
        "  reads_beyond_the_end_of_its_queries  guards IllegalAccess             7      0.2",
        "mask",
        "  window_one_short                     T1 OutputMismatch            1,234     18.0",
        "  window_one_long                      survives (2 unconfirmed)     2,000     61.0",
    ]


def test_names_stay_whole_on_a_narrow_terminal() -> None:
    narrow = shown(ONE_SEED, 80)
    assert max(map(len, narrow)) <= 80
    for each in ONE_SEED:
        assert any(line.split()[0] == each.defect.name for line in narrow if line)


def test_the_last_line_counts_the_killed() -> None:
    assert shown(ONE_SEED)[-1] == "2 of 3 killed"
    assert shown(THREE_SEEDS)[-1] == "1 of 2 killed"


def test_survivors_are_listed_with_their_titles() -> None:
    assert [line for line in shown(ONE_SEED) if "urvive" in line][1:] == [
        "Survives: window_one_long: Something is wrong."
    ]


def test_kills_are_counted_by_first_tier_and_by_all_tiers() -> None:
    assert [line.split() for line in shown(ONE_SEED)[-11:-6]] == [
        ["killed", "by", "first", "at", "all"],
        ["T1", "1", "1"],
        ["T2", "0", "1"],
        ["T4", "0", "1"],
        ["guards", "1", "1"],
    ]


def test_kills_are_counted_by_family_with_the_examples_that_they_took() -> None:
    assert [line.split() for line in shown([*ONE_SEED, *THREE_SEEDS]) if line.startswith(("family", "attention"))] == [
        ["family", "planted", "killed", "examples", "(median)", "(95%)"],
        ["attention", "5", "3", "14", "1,234"],
    ]


def test_several_seeds_give_a_median_and_the_worst() -> None:
    rows = {line.split()[0]: line.split()[1:] for line in shown(THREE_SEEDS, 120) if line.startswith("  ")}
    assert rows["always"] == ["T1", "OutputMismatch", "5", "(90)", "0.2", "(2.0)"]
    assert rows["once"] == ["guards", "IllegalAccess,", "1", "of", "3", "seeds", "2,000", "9.0"]


def test_enough_are_killed_from_95_percent_on() -> None:
    killed, survivor = ONE_SEED[0], ONE_SEED[2]
    assert enough([killed] * 19 + [survivor])
    assert not enough([killed] * 18 + [survivor])


STARTED = replace(started("fake+one", "fake+other"), examples=12, seconds=None)
DEFECTS = (defect("one"), defect("other"))


def search(name: str, cases: int = 12) -> list[Event]:
    """A search under way."""
    backend = f"fake+{name}"
    tally = Tally(searched=min(cases, 12), cases=cases)
    return [
        SliceStarted(at=0.0, job=0, backend=backend, index=0, seed=1, examples=12),
        Progress(at=0.0, backend=backend, tally=tally),
    ]


def end(name: str, *, killed: bool) -> list[Event]:
    """A search that ends after 12 examples."""
    backend = f"fake+{name}"
    found = filed(replace(decode(5), backend=backend), name, observation=observed(Kind.HANG))
    done = slice_finished(backend, examples=12, cases=12, seconds=0.5)
    return [*search(name), *([found] if killed else []), done]


def test_a_pipe_gets_a_line_for_each_search() -> None:
    pipe = console(80)
    with watching(pipe, DEFECTS, 1) as watch:
        for event in (STARTED, *end("one", killed=True), *end("other", killed=False)):
            watch(event)
    assert lines(pipe) == [
        "1 of 2: one killed by watchdog Hang after 12 examples, 0.5 s",
        "2 of 2: other survives after 12 examples, 0.5 s",
    ]


def test_a_terminal_gets_one_line_that_is_gone_at_the_end() -> None:
    terminal = console(80, terminal=True)
    with watching(terminal, DEFECTS, 1) as watch:
        for event in (STARTED, *end("one", killed=True), *search("other", 1250)):
            watch(event)
    text = "\n".join(lines(terminal))
    assert "1 of 2 searched; now other 1,250" in text
    assert text.endswith("\x1b[2K")
    assert "killed by" not in text
