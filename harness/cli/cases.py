"""What is done with one case: `attnfuzz replay`, `shrink`, `triage` and `export`."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.campaign.plan import ALPHA, spent_per_output
from attnfuzz.harness.cli.given import EngineTree, PathTo, case_at, contract_option, counted, duration, tree_option
from attnfuzz.harness.cli.replaying import print_shown, recurring_at
from attnfuzz.harness.cli.terminal import BadInput, Exit, Terminal, new_table, print_line, tell
from attnfuzz.harness.export import CannotExport, Exporter, Target
from attnfuzz.harness.findings.environment import environment
from attnfuzz.harness.report.markdown import render_issue
from attnfuzz.harness.sandbox.check import Runner, render_failure
from attnfuzz.harness.sandbox.tries import FRESH_SEEDS
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.shrink import CaseRejected, Shrunk, shrink
from attnfuzz.harness.triage import Blame, Triage, VariantOutcome
from attnfuzz.harness.triage import triage as triage_of
from attnfuzz.harness.triage.repeats import REPEATS
from attnfuzz.harness.triage.sanitizer import ask_tools
from attnfuzz.harness.verdict.describe import describe_any
from attnfuzz.harness.verdict.printable import printable
from attnfuzz.harness.verdict.wording import count, left_unjudged
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import AnyCase

_STYLES = {Blame.CALLER: "bold red", Blame.KERNEL: "bold red", Blame.UNCLEAR: "bold yellow", Blame.NONE: "bold green"}

_path_argument = click.argument("path", type=PathTo(exists=True), metavar="CASE.json | FINDING_DIR")


def _elsewhere_options(verb: str, hint: str = "") -> Callable[..., Any]:
    """The options --backend and that of an engine's tree: where to run the case instead, as `backend` and `tree`."""
    backend = click.option("--backend", metavar="NAME", help=f"{verb} another backend{hint}.")
    tree = tree_option(f"{verb} this source tree of {{engine}}, whatever release it was found in.")
    return lambda command: backend(tree(command))


def _runner(case: AnyCase, contract: str, seeds: int = 1) -> Runner:
    """A runner that judges as a campaign of this one case would, run with so many value seeds.

    With less alpha, what a longer campaign found by a hair would pass.
    """
    return Runner([case.backend], contract=contract, alpha=spent_per_output(ALPHA, cases=seeds), progress=tell)


def _rejected(case: AnyCase, reason: object) -> BadInput:
    return BadInput(f"{case.backend} rejects this case: {reason}. Try another --backend.")


@click.command()
@_path_argument
@_elsewhere_options("Run the case on", ", such as one with a fix")
@click.option(
    "--times",
    type=counted(),
    help="Run it so many times.  [default: 1; for a finding that comes and goes, until it fails, as often as its rate "
    "asks for]",
)
@contract_option
def replay(*, path: Path, backend: str | None, tree: EngineTree | None, times: int | None, contract: str) -> Exit:
    """Run a case again, in a process that may die.

    A finding that comes and goes is run under the conditions that it was filed with (after the cases that it needs, or
    beside others), until it has failed or would have with 99% probability.

    Exits with 0 if it passes now, 1 if it still fails (once is enough), 2 if it could not be run.
    """
    console = Terminal()
    case = case_at(path, backend, tree)
    recurring = recurring_at(path)
    if recurring is not None and isinstance(case, Case):
        with _runner(case, contract, seeds=FRESH_SEEDS) as runner:
            shown = recurring.show(case, runner, times)
        if shown.unsupported is not None:
            raise _rejected(case, shown.unsupported)
        return print_shown(console, path, case, shown)
    times = times or 1
    with _runner(case, contract) as runner:
        verdicts = [runner.verdict(case) for _ in range(times)]
        failed = [verdict for verdict in verdicts if verdict.failures]
        explained = runner.explained(case, failed[0]) if failed else None
    for verdict in verdicts:
        if verdict.unsupported is not None:
            raise _rejected(case, verdict.unsupported)
    again = f" {len(failed) or times} of {count(times, 'time')}" if times > 1 else ""
    if explained is not None:
        console.print(Text(render_failure(case, explained).rstrip()))
        console.print()
        print_line(console, f"{path} still fails on {case.backend}{again}.", "bold red")
        return Exit.FOUND
    if verdicts[0].unanswered:
        print_line(console, left_unjudged(verdicts[0].unanswered).capitalize() + ".")
    print_line(console, f"{path} passes on {case.backend}{again}.", "bold green")
    return Exit.CLEAN


@click.command("shrink")
@_path_argument
@click.option(
    "--output",
    "-o",
    type=PathTo(dir_okay=False),
    help="Where to write the smaller case; without it beside the given file or folder, as NAME.small.json.",
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--runs", type=counted(), default=2000, show_default=True, help="Run at most so many cases.")
@click.option("--time", "seconds", type=duration, default="10m", show_default=True, help="Take no longer.")
@_elsewhere_options("Shrink what fails on")
@click.option(
    "--repeat",
    type=counted(most=10_000),
    default=1,
    show_default=True,
    help="Run each case up to so many times: one that fails now and then fails.",
)
@click.option(
    "--same-kernels",
    is_flag=True,
    help="Keep head dims, page size and heads per KV head of calls, so that they run on the kernels that they ran on.",
)
@contract_option
def shrink_case(
    *,
    path: Path,
    output: Path | None,
    force: bool,
    runs: int,
    seconds: float,
    backend: str | None,
    tree: EngineTree | None,
    repeat: int,
    same_kernels: bool,
    contract: str,
) -> Exit:
    """Write the smallest case that fails like a given one.

    Its first failure is what counts: a smaller case that fails in another way is not taken.

    Exits with 0 if the case passes, so that there is nothing to shrink; 1 if it fails and a case was written; 2 if it
    could not be run.
    """
    target = output or _beside(path)
    if not target.parent.is_dir():
        raise BadInput(f"{target.parent} is no folder: name a file in one with -o.")
    if target.exists() and not force:
        raise BadInput(f"{target} is there already: name another file with -o, or write over it with --force.")
    case = case_at(path, backend, tree)
    console = Terminal()
    with _runner(case, contract) as runner:
        try:
            budget = ShrinkBudget(runs=runs, seconds=seconds)
            shrunk = shrink(case, runner, budget=budget, repeat=repeat, same_kernels=same_kernels)
        except CaseRejected as error:
            raise _rejected(case, error) from error
    if shrunk is None:
        console.print(Text(f"{path} passes on {case.backend}: there is nothing to shrink."))
        return Exit.CLEAN
    case_file.save(target, shrunk.case)
    # The notes are the same, and last of all.
    before, after = describe_any(case, notes=False), describe_any(shrunk.case)
    console.print(Text(f"before\n{before}\n\nafter\n{after}\n"))
    print_line(console, f"{_summary(shrunk, same=shrunk.case == case)}\n")
    quoted = shlex.quote(str(target))
    for command in (f"replay {quoted}", f"triage {quoted}", f"export {quoted} -o repro.py"):
        print_line(console, f"  attnfuzz {command}")
    return Exit.FOUND


def _beside(path: Path) -> Path:
    # Not in a finding's folder: a campaign that finds a smaller case of its own puts a new folder in its place.
    if path.is_dir():
        # The folder that one is in has a name too.
        named = path if path.name and path.name != ".." else path.resolve()
        return named.parent / f"{named.name}.small.json"
    return path.with_suffix(".small.json")


def _summary(shrunk: Shrunk, *, same: bool) -> str:
    failure = shrunk.observation
    where = f" in {failure.kernel}" if failure.kernel else ""
    what = "no smaller case fails so" if same else "the smaller case fails as the first does"
    text = f"{failure.kind}: {failure.place}{where}: {what} ({count(shrunk.runs, 'run')})."
    return text if shrunk.steady else f"{text} It did not come back in a fresh worker: try --repeat."


@click.command()
@_path_argument
@_elsewhere_options("Run the case on")
@click.option(
    "--times",
    type=counted(2, 10_000),
    default=REPEATS,
    show_default=True,
    help="Run it so many times in fresh processes and as often in one, to tell a race.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@contract_option
def triage(
    *,
    path: Path,
    backend: str | None,
    tree: EngineTree | None,
    times: int,
    as_json: bool,
    contract: str,
) -> Exit:
    """Say whose fault a failing case is: its caller's or the kernel's, and why.

    Runs it with guards on either side, with other outputs, contents and workspaces, eagerly and in a graph, alone,
    again and again, and its calls by themselves, against what their arguments ask for.

    Exits with 0 if it passes in every way, 1 if it fails in one, 2 if it could not be run.
    """
    case = case_at(path, backend, tree)
    with _runner(case, contract) as runner:
        found = triage_of(case, runner, repeats=times)
        report = ask_tools(case, runner)
    found = replace(found, tools=report.said, missing=report.missing)
    if as_json:
        # In ASCII, since what runs commands on a terminal is no control character of JSON's.
        click.echo(json.dumps(msgspec.json.decode(msgspec.json.encode(found)), indent=2))
    else:
        _show(Terminal(), found, path)
    return Exit.FOUND if found.fails else Exit.CLEAN


def _show(console: Console, found: Triage, path: Path) -> None:
    console.print(Text(printable(found.conclusion), style=_STYLES[found.fault]))
    for sentence in (*found.sentences, *found.tools):
        item = Table.grid(padding=(0, 1))
        item.add_column(width=1)
        item.add_column(overflow="fold")
        item.add_row("-", Text(printable(sentence)))
        console.print(item)
    console.print()
    console.print(_variants(found))
    if found.missing:
        console.print()
    for missing in found.missing:
        console.print(Text(printable(missing), style="dim"))
    if found.fails:
        console.print()
        given = shlex.quote(str(path))
        print_line(console, f"smaller: attnfuzz shrink {given}")
        print_line(console, f"script:  attnfuzz export {given}")


def _variants(found: Triage) -> Table:
    variants = new_table("varied", "to", "runs", "result", numbers=("runs",))
    for variant in found.variants:
        runs = variant.outcome.runs
        style = "" if runs else "dim"
        variants.add_row(variant.what, variant.value, str(runs or "-"), Text(_result(variant.outcome)), style=style)
    return variants


def _result(outcome: VariantOutcome) -> str:
    """How a variant ended, in half a line."""
    if not outcome.runs:
        return f"not run: {printable(outcome.reason)}"
    if outcome.failure is None:
        return "passes"
    place = f" at {printable(outcome.failure.place)}" if outcome.failure.place else ""
    often = f" in {outcome.failed}" if outcome.failed < outcome.runs else ""
    return f"fails{often}, {outcome.failure.kind}{place}"


@click.command()
@_path_argument
@click.option(
    "--for",
    "target",
    type=click.Choice([target.value for target in Target]),
    callback=lambda _context, _option, value: None if value is None else Target(value),
    help="native (default): on a CPU, with the kernels' source. flashinfer: the same calls of FlashInfer, on a GPU.",
)
@click.option("--issue", is_flag=True, help="Write the text of an issue in markdown, with a script if it fits.")
@click.option("--output", "-o", type=PathTo(dir_okay=False), help="Write it to a file.")
def export(*, path: Path, target: Target | None, issue: bool, output: Path | None) -> None:
    """Write a stand-alone script that shows what a case does: it needs torch, and nothing of attnfuzz."""
    case = case_at(path)
    known = recurring_at(path)
    try:
        exporter = Exporter(case) if known is None else known.exporter(case)
        text = _issue(case, exporter, target) if issue else exporter.script(target or Target.NATIVE)
    except CannotExport as error:
        raise BadInput(f"{path} can't be exported: {error}") from error
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text)
        tell(f"Wrote {output}.")


def _issue(case: AnyCase, exporter: Exporter, target: Target | None) -> str:
    """The text, with the script for `target`, or for any that it can be made for."""
    if exporter.seen is None:
        raise CannotExport("it passes, there is nothing to report")
    # What no script shows can still be reported.
    scripts = list(exporter.scripts(None if target is None else [target]))
    return render_issue(case, exporter.seen, environment(), scripts)
