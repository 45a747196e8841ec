"""`attnfuzz defects`: the planted bugs, and which of them the judge kills."""

import difflib
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

import attnfuzz
from attnfuzz.harness.campaign.jobs import JobEnded, JobProcesses
from attnfuzz.harness.campaign.prepare import check_room, prepare
from attnfuzz.harness.cli.exits import BadInput, Exit
from attnfuzz.harness.cli.given import JOBS, SEED, PathTo, counted, tell
from attnfuzz.harness.cli.kills import Watch, print_scores
from attnfuzz.harness.cli.terminal import Terminal, echo
from attnfuzz.harness.defects.pins import save_pin
from attnfuzz.harness.defects.results import DefectScore, DefectTally, enough, write_score
from attnfuzz.harness.defects.search import NO_SHRINKING, Search, SearchOutcome, run_searches
from attnfuzz.harness.search.messages import JobSetup, ShrinkBudget
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name
from attnfuzz.kernels.defects.defect import Defect

PIN_BUDGET = ShrinkBudget(runs=400, seconds=8.0)
"""What shrinking a case to pin may cost: small enough to read is enough."""


@click.group(invoke_without_command=True)
@click.pass_context
def defects(ctx: click.Context) -> None:
    """The planted bugs with which the judge's power is measured."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_defects)


@defects.command("list")
def list_defects() -> None:
    """List the planted defects: what is wrong, what class of bug it is, and where it was met."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("defect", no_wrap=True)
    table.add_column("what is wrong, and its source", overflow="fold")
    for defect in in_layers(DEFECTS):
        about = f"{defect.layer}, {defect.bug_class}; {defect.source}"
        table.add_row(defect.name, Text.assemble(f"{defect.title}\n", (about, "dim")))
    Terminal().print(table)


@defects.command("run")
@click.argument("names", nargs=-1, metavar="[NAME ...]")
@click.option("--examples", type=counted(), default=2000, show_default=True, help="Cases to draw for each.")
@click.option("--seed", type=SEED, default=1, show_default=True, help="Draws the cases.")
@click.option("--seeds", type=counted(most=1000), default=1, show_default=True, help="So many, from --seed on.")
@click.option("--jobs", type=JOBS, default=2, show_default=True, help="Processes that search.")
@click.option("--without", type=click.Choice(Tier), multiple=True, help="Switch a tier of the judge off; repeatable.")
@click.option("--json", "results", type=PathTo(dir_okay=False), help="Write the results there too.")
@click.option(
    "--pin",
    type=PathTo(file_okay=False),
    help="Shrink each first failure and leave its case in this folder; seconds include that.",
)
@click.pass_context
def run_defects(
    ctx: click.Context,
    *,
    names: tuple[str, ...],
    examples: int,
    seed: int,
    seeds: int,
    jobs: int,
    without: tuple[Tier, ...],
    results: Path | None,
    pin: Path | None,
) -> None:
    """Search planted defects (all, if none is named) as a campaign does, each up to its first failure.

    Exits with 0 if at least 95% are killed, by every seed, 1 if not, 2 if the harness itself failed.
    """
    chosen = _chosen(names)
    drawn = range(seed, seed + seeds)
    shrink = NO_SHRINKING if pin is None else PIN_BUDGET
    backends = tuple(map(backend_name, chosen))
    prepare(backends, tell)
    check_room(jobs, backends)
    for folder in filter(None, (results and results.parent, pin)):
        # Before the searches, which take minutes: a folder that can't be made would lose them.
        folder.mkdir(parents=True, exist_ok=True)
    console = Terminal()
    console.print(f"Searching {count(len(chosen), 'defect')}: {examples:,} examples each, {_seeds(drawn)}.")
    setup = JobSetup(backends=backends, contract="declared", guard=None, without=without)
    outcomes: dict[str, list[SearchOutcome]] = {defect.name: [] for defect in chosen}
    searches = (Search(defect, seed=each, examples=examples, shrink=shrink) for defect in chosen for each in drawn)
    try:
        with JobProcesses(jobs, setup) as processes, Watch(console, len(chosen) * seeds) as watch:
            for search in run_searches(searches, processes):
                watch(search)
                if search.over:
                    outcomes[search.defect.name].append(search.outcome)
                if search.over and pin is not None and search.caught is not None:
                    save_pin(pin, search.defect.name, search.caught)
    except JobEnded as ended:
        echo(f"{ended.text}\nThe harness itself failed.", err=True)
        ctx.exit(Exit.FAILED)
    scores = [DefectTally(defect, tuple(outcomes[defect.name])) for defect in chosen]
    if results is not None:
        _write(results, scores, examples, drawn, without)
    print_scores(console, scores)
    ctx.exit(Exit.CLEAN if enough(scores) else Exit.FOUND)


def _seeds(drawn: Sequence[int]) -> str:
    return f"seed {drawn[0]}" if len(drawn) == 1 else f"seeds {drawn[0]} to {drawn[-1]}"


def in_layers(defects: Sequence[Defect]) -> list[Defect]:
    """The defects of a layer together, layers as they first come."""
    layers = list(dict.fromkeys(defect.layer for defect in defects))
    return sorted(defects, key=lambda defect: layers.index(defect.layer))


def _chosen(names: tuple[str, ...]) -> list[Defect]:
    known = {defect.name: defect for defect in DEFECTS}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "attnfuzz defects list names them."
            raise BadInput(f"no defect is called {name!r}: {hint}")
    return in_layers([known[name] for name in dict.fromkeys(names)] or DEFECTS)


def _write(
    path: Path, scores: Sequence[DefectTally], examples: int, drawn: Sequence[int], without: tuple[Tier, ...]
) -> None:
    found = DefectScore(
        attnfuzz=attnfuzz.__version__,
        examples=examples,
        seeds=tuple(drawn),
        without=without,
        killed=sum(score.killed for score in scores),
        defects=len(scores),
        searches=tuple(outcome for score in scores for outcome in score.outcomes),
    )
    write_score(path, found)
