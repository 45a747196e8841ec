"""`attnfuzz triage`: whose fault a case is."""

import json
import shlex
from pathlib import Path

import click
import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.campaign.plan import ALPHA, spent_per_output
from attnfuzz.harness.cli.exits import Exit
from attnfuzz.harness.cli.given import (
    EngineTree,
    PathTo,
    case_at,
    contract_option,
    counted,
    tell,
    tree_option,
)
from attnfuzz.harness.cli.terminal import (
    Terminal,
)
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.triage import Blame, Triage, VariantOutcome
from attnfuzz.harness.triage import triage as triage_of
from attnfuzz.harness.triage.repeats import REPEATS
from attnfuzz.harness.triage.sanitizer import ask_tools
from attnfuzz.harness.verdict.printable import printable

_STYLES = {Blame.CALLER: "bold red", Blame.KERNEL: "bold red", Blame.UNCLEAR: "bold yellow", Blame.NONE: "bold green"}


@click.command()
@click.argument("path", type=PathTo(exists=True), metavar="CASE.json | FINDING_DIR")
@click.option("--backend", metavar="NAME", help="Run the case on another backend.")
@tree_option("Run the case on this source tree of {engine}, whatever release it was found in.")
@click.option(
    "--times",
    type=counted(2, 10_000),
    default=REPEATS,
    show_default=True,
    help="Run it so many times in fresh processes and as often in one, to tell a race.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@contract_option
@click.pass_context
def triage(
    ctx: click.Context,
    *,
    path: Path,
    backend: str | None,
    tree: EngineTree | None,
    times: int,
    as_json: bool,
    contract: str,
) -> None:
    """Say whose fault a failing case is: its caller's or the kernel's, and why.

    Runs it with guards on either side, with other outputs, contents and workspaces, eagerly and in a graph, alone,
    again and again, and its calls by themselves, against what their arguments ask for.

    Exits with 0 if it passes in every way, 1 if it fails in one, 2 if it could not be run.
    """
    case = case_at(path, backend, tree)
    # As `attnfuzz replay` judges it.
    alpha = spent_per_output(ALPHA, cases=1)
    with Runner([case.backend], contract=contract, alpha=alpha, progress=tell) as runner:
        found = triage_of(case, runner, repeats=times)
        report = ask_tools(case, runner)
    found = replace(found, tools=report.said, missing=report.missing)
    if as_json:
        # In ASCII, since what runs commands on a terminal is no control character of JSON's.
        click.echo(json.dumps(msgspec.json.decode(msgspec.json.encode(found)), indent=2))
    else:
        _show(Terminal(), found, path)
    ctx.exit(Exit.FOUND if found.fails else Exit.CLEAN)


def _show(console: Console, found: Triage, path: Path) -> None:
    console.print(Text(printable(found.conclusion), style=_STYLES[found.fault]))
    for sentence in (*found.sentences, *found.tools):
        _item(console, sentence)
    console.print()
    console.print(_variants(found))
    if found.missing:
        console.print()
    for missing in found.missing:
        console.print(Text(printable(missing), style="dim"))
    if found.fails:
        console.print()
        given = shlex.quote(str(path))
        console.print(f"smaller: attnfuzz shrink {given}", soft_wrap=True, markup=False)
        console.print(f"script:  attnfuzz export {given}", soft_wrap=True, markup=False)


def _item(console: Console, sentence: str) -> None:
    item = Table.grid(padding=(0, 1))
    item.add_column(width=1)
    item.add_column(overflow="fold")
    item.add_row("-", Text(printable(sentence)))
    console.print(item)


def _variants(found: Triage) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("varied", "to", "runs", "result"):
        table.add_column(title, overflow="fold", justify="right" if title == "runs" else "left")
    for variant in found.variants:
        style = "" if variant.outcome.runs else "dim"
        runs = str(variant.outcome.runs or "-")
        table.add_row(variant.what, variant.value, runs, Text(_result(variant.outcome)), style=style)
    return table


def _result(outcome: VariantOutcome) -> str:
    """How a variant ended, in half a line."""
    if not outcome.runs:
        return f"not run: {printable(outcome.reason)}"
    if outcome.failure is None:
        return "passes"
    place = f" at {printable(outcome.failure.place)}" if outcome.failure.place else ""
    often = f" in {outcome.failed}" if outcome.failed < outcome.runs else ""
    return f"fails{often}, {outcome.failure.kind}{place}"
