"""`attnfuzz defects`: the planted defects, and which of them the judge detects."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import attnfuzz
from attnfuzz.harness.campaign.jobs import JobEnded, JobProcesses
from attnfuzz.harness.campaign.prepare import check_room, prepare
from attnfuzz.harness.cli.answers import Defects, ListedDefect
from attnfuzz.harness.cli.given import named
from attnfuzz.harness.cli.terminal import (
    Exit,
    Terminal,
    answer,
    details,
    is_quiet,
    new_table,
    print_line,
    tell,
    warn,
)
from attnfuzz.harness.defects.pins import save_pin
from attnfuzz.harness.defects.results import DefectScore, DefectTally, enough
from attnfuzz.harness.defects.search import NO_SHRINKING, Search, SearchOutcome, run_searches
from attnfuzz.harness.search.messages import JobSetup, ShrinkBudget
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import Defect

PIN_BUDGET = ShrinkBudget(runs=400, seconds=8.0)
"""The cost of shrinking a case to pin: it has to be small enough to read."""


def list_defects() -> None:
    """Print the planted defects."""
    ordered = in_layers(DEFECTS)
    answer(Defects(defects=tuple(map(ListedDefect.of, ordered))))
    if is_quiet():
        for defect in ordered:
            print_line(Terminal(), defect.name)
        return
    table = new_table("defect", "mistake, layer, class of bug, and source", whole=("defect",))
    for defect in ordered:
        about = f"{defect.layer}, {defect.bug_class}; {defect.source}"
        table.add_row(defect.name, Text.assemble(f"{defect.title}\n", (about, "dim")))
    Terminal().print(table)


def run_defects(
    *,
    names: tuple[str, ...],
    examples: int,
    seed: int,
    seeds: int,
    jobs: int,
    without: tuple[str, ...],
    pin: Path | None,
) -> Exit:
    """Search planted defects, print which are detected, and return the exit code."""
    off = tuple(map(Tier, without))
    chosen = in_layers(named(names, DEFECTS, "defect"))
    drawn = range(seed, seed + seeds)
    shrink = NO_SHRINKING if pin is None else PIN_BUDGET
    backends = tuple(map(backend_name, chosen))
    prepare(backends, tell)
    check_room(jobs, backends)
    if pin is not None:
        # Before the searches, which take minutes: a folder that can't be created would lose them.
        pin.mkdir(parents=True, exist_ok=True)
    console = details()
    which = f"seed {seed}" if seeds == 1 else f"seeds {seed} to {drawn[-1]}"
    console.print(f"Searching {count(len(chosen), 'defect')}: {examples:,} examples each, {which}.")
    setup = JobSetup(backends=backends, contract="declared", guard=None, without=off)
    outcomes: dict[str, list[SearchOutcome]] = {defect.name: [] for defect in chosen}
    searches = (Search(defect, seed=each, examples=examples, shrink=shrink) for defect in chosen for each in drawn)
    try:
        with JobProcesses(jobs, setup) as processes, watching(console, len(chosen) * seeds) as watch:
            for search in run_searches(searches, processes):
                watch(search)
                if search.over:
                    outcomes[search.defect.name].append(search.outcome)
                if search.over and pin is not None and search.caught is not None:
                    save_pin(pin, search.defect.name, search.caught)
    except JobEnded as ended:
        warn(f"{ended.text}\nThe harness itself failed.")
        return Exit.FAILED
    scores = [DefectTally(defect, tuple(outcomes[defect.name])) for defect in chosen]
    answer(_score(scores, examples, drawn, off))
    print_scores(Terminal(), scores)
    return Exit.CLEAN if enough(scores) else Exit.FOUND


def in_layers(defects: Sequence[Defect]) -> list[Defect]:
    """Return the defects ordered by layer, layers in the order of their first defect."""
    layers = list(dict.fromkeys(defect.layer for defect in defects))
    return sorted(defects, key=lambda defect: layers.index(defect.layer))


def _score(
    scores: Sequence[DefectTally], examples: int, drawn: Sequence[int], without: tuple[Tier, ...]
) -> DefectScore:
    return DefectScore(
        attnfuzz=attnfuzz.__version__,
        examples=examples,
        seeds=tuple(drawn),
        without=without,
        killed=sum(score.killed for score in scores),
        defects=len(scores),
        searches=tuple(outcome for score in scores for outcome in score.outcomes),
    )


@contextmanager
def watching(console: Console, total: int) -> Iterator[Callable[[Search], None]]:
    """Follow `total` searches: on a terminal in one line that is redrawn, elsewhere in a line for each.

    Yields a function to call with a search that has advanced.
    """
    seen: dict[int, Search] = {}

    def over() -> int:
        return sum(search.over for search in seen.values())

    def watch(search: Search) -> None:
        seen[id(search)] = search
        if search.over and not console.is_terminal:
            console.print(f"{over()} of {total}: {_result(search.outcome)}", soft_wrap=True)

    def draw() -> Text:
        now = ", ".join(f"{search.defect.name} {search.cases:,}" for search in seen.values() if not search.over)
        return Text(f"{over()} of {total} searched; now {now}", no_wrap=True, overflow="ellipsis")

    live = Live(console=console, get_renderable=draw, refresh_per_second=4, transient=True)
    with live if console.is_terminal and not console.quiet else nullcontext():
        yield watch


def print_scores(console: Console, scores: Sequence[DefectTally]) -> None:
    """Print each defect's score below its layer, then how often each tier detects one, then the result."""
    if not is_quiet():
        _print_tables(console, scores)
    print_line(console, f"{sum(score.killed for score in scores)} of {len(scores)} killed", "bold")


def _print_tables(console: Console, scores: Sequence[DefectTally]) -> None:
    console.print()
    console.print(_table(scores))
    console.print()
    console.print(_by_killer(scores))
    console.print()
    for score in scores:
        if not score.killed:
            console.print(Text(f"Survives: {score.defect.name}: {score.defect.title}", style="red"))


def _table(scores: Sequence[DefectTally]) -> Table:
    numbers = ("examples", "seconds")
    table = new_table("defect", "killed by", *numbers, whole=("defect",), numbers=numbers)
    for layer, members in groupby(scores, key=lambda score: score.defect.layer):
        table.add_row(Text(layer.value, style="bold"))
        for score in members:
            style = "" if score.killed else "red"
            examples, seconds = _numbers(score.examples, "{:,.0f}"), _numbers(score.seconds, "{:.1f}")
            table.add_row(f"  {score.defect.name}", _killed_by(score), examples, seconds, style=style)
    return table


def _killed_by(score: DefectTally) -> str:
    seeds = len(score.outcomes)
    words = " ".join(score.usual) if score.kills else "survives"
    share = f", {len(score.kills)} of {seeds} seeds" if score.kills and not score.killed else ""
    unconfirmed = f" ({score.unconfirmed} unconfirmed)" if score.unconfirmed else ""
    return f"{words}{share}{unconfirmed}"


def _numbers(median_and_worst: tuple[float, float], form: str) -> str:
    """The median; of several searches, with the worst in brackets."""
    median, worst = (form.format(number) for number in median_and_worst)
    return median if median == worst else f"{median} ({worst})"


def _by_killer(scores: Sequence[DefectTally]) -> Table:
    table = new_table("killed by", "first", "at all", numbers=("first", "at all"))
    kills = [kill for score in scores for kill in score.kills]
    first = Counter(kill.by for kill in kills)
    at_all = first + Counter(other for kill in kills for other in kill.also)
    for by, times in sorted(at_all.items()):
        table.add_row(by, f"{first[by]:,}", f"{times:,}")
    return table


def _result(outcome: SearchOutcome) -> str:
    after = f"after {count(outcome.examples, 'example')}, {outcome.seconds:.1f} s"
    if outcome.kill is None:
        return f"{outcome.defect} survives {after}"
    return f"{outcome.defect} killed by {outcome.kill.by} {outcome.kill.kind} {after}"
