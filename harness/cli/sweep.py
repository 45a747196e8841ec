"""`attnfuzz sweep`: failures by release, those that are reported and those that a search of each release finds."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from msgspec.structs import replace

from attnfuzz.harness.backends.engines import engine_named, engine_names
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.plan import ALPHA, Plan, spent_per_output
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.campaign import run_campaign
from attnfuzz.harness.cli.given import (
    JOBS,
    EngineTree,
    PathTo,
    check_alone,
    counted,
    duration,
    out_option,
    seed_option,
    tree_option,
)
from attnfuzz.harness.cli.sweep_table import print_sweep
from attnfuzz.harness.cli.terminal import BadInput, Exit, Terminal, echo, tell
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.findings.environment import environment
from attnfuzz.harness.releases.replaying import MOST_CASES
from attnfuzz.harness.releases.results import RESULTS, Searched, SweepPlan, SweepResults, read_results, write_results
from attnfuzz.harness.releases.sweep import Sweep
from attnfuzz.harness.releases.versions import versions_in
from attnfuzz.harness.releases.wanted import Wanted, given, reported
from attnfuzz.harness.releases.words import MARKDOWN, render_markdown
from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.engine import Engine

EXAMPLES = 1000
"""What is drawn for each backend of a release if nobody says."""

_MOST_CHARACTERS = 160
"""Of what is told of a run while a sweep is under way; the files have it all."""


@click.command()
@click.argument("package", required=False, metavar="[ENGINE]")
@click.argument("versions", required=False, metavar="[VERSIONS]")
@click.option(
    "--backend",
    "kinds",
    multiple=True,
    metavar="NAME",
    help="What to test of each release; may be given several times.  [default: all that can be tested]",
)
@click.option(
    "--examples",
    type=counted(0),
    help=f"Cases to draw for each backend of a release; 0 to run known ones alone.  [default: {EXAMPLES}]",
)
@click.option("--time", "seconds", type=duration, help="Time to search each release, like 90s, 10m or 1h30m.")
@click.option(
    "--cases",
    multiple=True,
    type=PathTo(exists=True),
    metavar="CASE.json | FINDING_DIR",
    help="A failure to run in every release, beside those that are reported; may be given several times.",
)
@tree_option("A source tree, as the last release.")
@seed_option("Draw the cases of an earlier sweep again.")
@click.option("--jobs", type=JOBS, default=1, show_default=True, help="Processes that search.")
@out_option("attnfuzz-sweep", "Folder of the table, of failing cases, and of the campaigns with their findings.")
@click.option(
    "--resume",
    type=PathTo(exists=True, file_okay=False),
    metavar="DIR",
    help="Go on with the sweep of this folder, as it was begun: releases that were searched are not searched again.",
)
@click.pass_context
def sweep(
    ctx: click.Context,
    *,
    package: str | None,
    versions: str | None,
    kinds: tuple[str, ...],
    examples: int | None,
    seconds: float | None,
    cases: tuple[Path, ...],
    tree: EngineTree | None,
    seed: int,
    jobs: int,
    out: Path,
    resume: Path | None,
) -> None:
    """Run known failures in released versions, search each for others, and say which began and ended when.

    VERSIONS are like 0.5.9..latest, or 0.5.9,0.5.11. What is found in one is run in all. The table is written to
    sweep.md and sweep.json too, after each release.

    Exits with 0 if no release fails, 1 if one does, 2 if none could be run, 130 after Ctrl-C.
    """
    if resume is not None:
        check_alone(ctx, "a sweep")
        ctx.exit(_run(read_results(resume), resume))
    if examples is not None and seconds is not None:
        raise click.UsageError("--examples and --time are both budgets: give one of them")
    engine = _engine(package)
    kinds = _kinds(kinds, engine)
    known = _given(cases, engine, kinds)
    asked = SweepPlan(
        package=engine.name,
        releases=_releases(versions, tree, engine),
        kinds=kinds,
        examples=None if examples == 0 else EXAMPLES if examples is None and seconds is None else examples,
        seconds=seconds,
        seed=seed,
        jobs=jobs,
        given=known,
    )
    if (out / RESULTS).exists():
        tell(f"{out / RESULTS} is of an earlier sweep, and is written anew; its findings are kept.")
    begun = SweepResults(asked=asked, environment=environment())
    write_results(out, begun)
    ctx.exit(_run(begun, out))


def _run(results: SweepResults, out: Path) -> Exit:
    """Run a sweep, or the rest of it, keep what is known after each release, and print it in the end."""
    engine = _engine(results.asked.package)
    home = Home(out)
    with Runner() as runner:
        known = (*reported(load_bugs(), engine, results.asked.kinds, runner), *results.asked.given)
    outputs = (len(known) + 1) * len(results.asked.releases) * MOST_CASES
    interrupted = True
    going = Sweep(
        results,
        engine,
        known,
        runners=partial(Runner, alpha=spent_per_output(ALPHA, outputs), progress=tell),
        search=partial(_search, results.asked, out),
        findings=home.findings,
        cases=out / "cases",
        tell=lambda line: tell(line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"),
    )
    try:
        for known_now in going.run():
            results = known_now
            _write(results, engine, out)
            interrupted = any(each.interrupted for each in results.searched.values())
    except KeyboardInterrupt:
        results, interrupted = going.results, True
        _write(results, engine, out)
    print_sweep(Terminal(), results, engine)
    echo(f"Table: {out / MARKDOWN}, {out / RESULTS}")
    if interrupted:
        echo(f"Interrupted. What was found before is kept; go on with: attnfuzz sweep --resume {shlex.quote(str(out))}")
        return Exit.INTERRUPTED
    if not results.judged:
        return Exit.FAILED
    return Exit.FOUND if results.fails else Exit.CLEAN


def _search(asked: SweepPlan, out: Path, backends: tuple[str, ...]) -> Searched:
    """Run a campaign in the sweep's home, which keeps what is found."""
    campaign, standing = run_campaign(
        Plan(
            backends=backends,
            examples=asked.examples,
            seconds=asked.seconds,
            seed=asked.seed,
            jobs=asked.jobs,
            contract="declared",
            guard=None,
            out=out,
        )
    )
    return Searched(
        examples=sum(score.tally.searched for score in standing.scores.values()),
        cases=standing.cases,
        campaign=campaign,
        interrupted=standing.finished is not None and standing.finished.interrupted,
        failure=_failure(standing),
    )


def _failure(standing: Standing) -> str:
    """Why a search says too little to count as complete; nothing if it doesn't."""
    if standing.failure is not None:
        # The last line says how the job's process ended, the one before it what it wrote last.
        lines = [line for line in standing.failure.text.splitlines() if line.strip()]
        return f"the search failed: {next(iter([*lines[-2:-1], *lines]), 'it did not say why')}"
    return f"{count(len(standing.unsettled), 'suspect')} not confirmed" if standing.unsettled else ""


def _write(results: SweepResults, engine: Engine, out: Path) -> None:
    write_results(out, results)
    write_durably(out / MARKDOWN, render_markdown(results, engine).encode())


def _engine(package: str | None) -> Engine:
    engine = engine_named(package or "")
    if engine is None:
        asked = "no engine" if package is None else f"no releases of {package!r} are known"
        first, *others = engine_names()
        more = f", or give {' or '.join(others)}" if others else ""
        raise BadInput(f"{asked}: write it like attnfuzz sweep {first} VERSION..latest{more}")
    return engine


def _kinds(named: Sequence[str], engine: Engine) -> tuple[str, ...]:
    for name in named:
        if name not in engine.kinds:
            raise BadInput(f"--backend {name}: of releases of {engine.name}, give {' or '.join(engine.kinds)}")
    return tuple(dict.fromkeys(named)) or engine.kinds


def _releases(versions: str | None, tree: EngineTree | None, engine: Engine) -> tuple[str, ...]:
    if versions is None and tree is None:
        raise BadInput("no versions: write them like 0.5.9..latest or 0.5.9,0.5.11")
    named = [] if versions is None else versions_in(versions, engine.released)
    return (*map(str, named), *([] if tree is None else [f"@{tree.path.resolve()}"]))


def _given(paths: Sequence[Path], engine: Engine, kinds: Sequence[str]) -> tuple[Wanted, ...]:
    """The failures in files and folders, each with a name of its own."""
    taken: dict[str, Wanted] = {}
    for path in dict.fromkeys(paths):
        wanted = given(path, engine, kinds)
        name, number = wanted.name, 1
        while name in taken:
            number += 1
            name = f"{wanted.name}-{number}"
        taken[name] = replace(wanted, name=name)
    return tuple(taken.values())
