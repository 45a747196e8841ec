"""`attnfuzz defects`: the planted defects, and which of them the judge detects."""

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import attnfuzz
from attnfuzz.harness.campaign.events import CampaignStarted, Event, FindingFiled, Handler, SliceFinished
from attnfuzz.harness.campaign.plan import MOST_OUTPUTS_PER_CASE, Plan
from attnfuzz.harness.campaign.run import run, start_jobs
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.given import named
from attnfuzz.harness.cli.selftests.answers import Defects, ListedDefect
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
from attnfuzz.harness.defects.search import SearchOutcome, is_over, outcome_of
from attnfuzz.harness.family import family_with
from attnfuzz.harness.report.verdict import failure_words
from attnfuzz.harness.verdict.tiers import ALPHA, Tier
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import Defect

PIN_SECONDS = 8.0
"""Time limit in seconds for shrinking a case to pin, which should be small enough to read."""


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
    chosen = in_layers(named(names, DEFECTS, "defect"))
    drawn = range(seed, seed + seeds)
    plan = Plan(
        backends=tuple(map(backend_name, chosen)),
        out=Path(),
        examples=examples,
        jobs=jobs,
        # Judges each case as outside a campaign, however many defects are chosen.
        alpha=ALPHA * examples * len(chosen) * MOST_OUTPUTS_PER_CASE,
        without=tuple(map(Tier, without)),
        trial=0.0 if pin is None else PIN_SECONDS,
    )
    if pin is not None:
        # Before the searches, which take minutes: a folder that can't be created would lose them.
        pin.mkdir(parents=True, exist_ok=True)
    console = details()
    which = f"seed {seed}" if seeds == 1 else f"seeds {seed} to {drawn[-1]}"
    console.print(f"Searching {count(len(chosen), 'defect')}: {examples:,} examples each, {which}.")
    with watching(console, chosen, seeds) as watch:
        standings = list(_trials(plan, drawn, (watch,) if pin is None else (watch, partial(_save_pin, pin))))
    failure = standings[-1].failure
    if failure is not None:
        warn(failure_words(failure))
        return Exit.FAILED
    scores = [DefectTally(defect, tuple(outcome_of(defect, each) for each in standings)) for defect in chosen]
    answer(_score(scores, examples, drawn, plan.without))
    print_scores(Terminal(), scores)
    return Exit.CLEAN if enough(scores) else Exit.FOUND


def _trials(plan: Plan, seeds: Iterable[int], handlers: Sequence[Handler]) -> Iterator[Standing]:
    """Run `plan` with each of `seeds`, in temporary homes, until the harness fails."""
    with start_jobs(plan, tell) as jobs:
        for seed in seeds:
            with tempfile.TemporaryDirectory() as home:
                standing = run(replace(plan, seed=seed, out=Path(home)), handlers, jobs=jobs).standing
            yield standing
            if standing.failure is not None:
                return


def _save_pin(folder: Path, event: Event) -> None:
    if isinstance(event, FindingFiled):
        save_pin(folder, event.fingerprint.backend.partition("+")[2], event)


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
def watching(console: Console, defects: Sequence[Defect], seeds: int) -> Iterator[Handler]:
    """Follow a trial per seed: on a terminal in a single line that is redrawn, elsewhere in a line for each search.

    Yields a handler of their events.
    """
    watch = _Watch(console, defects, seeds)
    live = Live(console=console, get_renderable=watch.draw, refresh_per_second=4, transient=True)
    with live if console.is_terminal and not console.quiet else nullcontext():
        yield watch


class _Watch:
    def __init__(self, console: Console, defects: Sequence[Defect], seeds: int) -> None:
        self._console = console
        self._defects = {backend_name(defect): defect for defect in defects}
        self._total = len(defects) * seeds
        self._over = 0
        self._standing = Standing()

    def __call__(self, event: Event) -> None:
        if isinstance(event, CampaignStarted):
            self._standing = Standing()
        self._standing(event)
        if isinstance(event, SliceFinished) and is_over(self._defects[event.backend], self._standing):
            self._over += 1
            if not self._console.is_terminal:
                result = _result(outcome_of(self._defects[event.backend], self._standing))
                self._console.print(f"{self._over} of {self._total}: {result}", soft_wrap=True)

    def draw(self) -> Text:
        running = [task.backend for task in self._standing.running.values()]
        searching = ", ".join(
            f"{self._defects[each].name} {self._standing.score(each).tally.cases:,}" for each in running
        )
        return Text(f"{self._over} of {self._total} searched; now {searching}", no_wrap=True, overflow="ellipsis")


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
    console.print(_by_family(scores))
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
    """Format the median, followed by the worst in brackets if there are several searches."""
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


def _by_family(scores: Sequence[DefectTally]) -> Table:
    numbers = ("planted", "killed", "examples (median)", "(95%)")
    table = new_table("family", *numbers, numbers=numbers)
    families: dict[str, list[DefectTally]] = {}
    for score in scores:
        backend = score.defect.planted(backend_name(score.defect))
        families.setdefault(family_with(backend.capability).title, []).append(score)
    for title, members in families.items():
        examples = sorted(each.examples for score in members for each in score.outcomes if each.kill)
        cells = (f"{median(examples):,.0f}", f"{examples[int(0.95 * len(examples))]:,}") if examples else ("", "")
        table.add_row(title, str(len(members)), str(sum(score.killed for score in members)), *cells)
    return table


def _result(outcome: SearchOutcome) -> str:
    after = f"after {count(outcome.examples, 'example')}, {outcome.seconds:.1f} s"
    if outcome.kill is None:
        return f"{outcome.defect} survives {after}"
    return f"{outcome.defect} killed by {outcome.kill.by} {outcome.kill.kind} {after}"
