"""`attnfuzz bugs`: the reported bugs, each of which must fail before its fix and pass after it."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.bugs import Bug, Project, load_bugs
from attnfuzz.harness.check import Runner
from attnfuzz.harness.cli.exits import BadInput, Exit
from attnfuzz.harness.cli.given import tell
from attnfuzz.harness.describe_calls import describe_any
from attnfuzz.harness.failures import Observation
from attnfuzz.harness.wording import count
from attnfuzz.kernels.defects.defect import BugClass


class ListByDefault(click.Group):
    """A group that takes arguments without a subcommand for those of `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` in front, unless a subcommand or help is asked for."""
        asked = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if asked else ["list", *args])


@click.group(cls=ListByDefault)
def bugs() -> None:
    """The bugs that were reported to serving engines, as cases; `list` is the default."""


def _filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """The names and options that choose among the bugs."""
    for decorate in (
        click.option(
            "--runnable/--not-runnable", default=None, help="Those that fail on this machine, or those that can't."
        ),
        click.option(
            "--class", "bug_class", type=click.Choice([*map(str, BugClass)]), metavar="CLASS", help="Of this class."
        ),
        click.option("--project", type=click.Choice([*map(str, Project)]), help="Of this project."),
        click.argument("names", nargs=-1, metavar="[NAME ...]"),
    ):
        command = decorate(command)
    return command


@bugs.command("list")
@_filters
def list_bugs(**chosen_by: Any) -> None:
    """List the reported bugs (all, if none is named), and what shows each."""
    table = _table("bug", "what goes wrong, its class, and what shows it")
    chosen = _chosen(**chosen_by)
    for bug in chosen:
        shown = f"shown by {bug.shown_by}" if bug.reproduced else f"not here: {bug.why_not_here}"
        table.add_row(bug.name, Text.assemble(f"{bug.title}\n", (f"{bug.bug_class}; {shown}", "dim")))
    console = Console(highlight=False)
    console.print(table)
    here = sum(bug.reproduced for bug in chosen)
    console.print(f"\n{count(len(chosen), 'bug')}: {here} can be seen to fail here, {len(chosen) - here} can't.")


@bugs.command("show")
@click.argument("names", nargs=-1, required=True, metavar="NAME ...")
def show_bugs(names: tuple[str, ...]) -> None:
    """Say all that is known of reported bugs: symptom, versions, sources, and the case."""
    console = Console(highlight=False)
    for bug in _named(names, load_bugs()):
        console.print(Text.assemble((bug.name, "bold"), f"  {bug.title}\n\n{bug.symptom}\n"))
        facts = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for label, text in _facts(bug):
            facts.add_row(label, text)
        console.print(facts)
        if bug.case is not None:
            case = bug.case_before if bug.reproduced else bug.case
            console.print(Text("\n" + describe_any(case)))
        console.print()


def _facts(bug: Bug) -> list[tuple[str, str]]:
    facts = [
        ("class", str(bug.bug_class)),
        ("fails as", ", ".join(bug.kinds)),
        ("affected", bug.affected),
        ("fixed in", bug.fixed_in),
        ("shown by", bug.shown_by),
        ("not here", bug.why_not_here),
        ("sources", "\n".join(bug.sources)),
    ]
    return [(label, text) for label, text in facts if text]


@bugs.command("run")
@_filters
@click.pass_context
def run_bugs(ctx: click.Context, /, **chosen_by: Any) -> None:
    """Run reported bugs (all, if none is named) before and after their fix.

    Exits with 0 if each that can be run here fails before its fix in a way that the report describes, and passes after
    it; 1 if not.
    """
    chosen = _chosen(**chosen_by)
    here = [bug for bug in chosen if bug.reproduced]
    console = Console(highlight=False)
    backends = tuple(dict.fromkeys(name for bug in here for name in (bug.backend_before, bug.backend_after)))
    with Runner(backends, progress=tell) as runner:
        runs = [_run(console, runner, bug) for bug in here]
    console.print(_results(chosen, {run.bug.name: run for run in runs}))
    wrong = [run.bug.name for run in runs if not run.shown]
    console.print(f"\n{count(len(runs) - len(wrong), 'bug')} shown, {len(chosen) - len(runs)} can't run here.")
    if wrong:
        console.print(Text(f"{count(len(wrong), 'bug')} not shown: {', '.join(wrong)}.", style="red"))
    ctx.exit(Exit.FOUND if wrong else Exit.CLEAN)


@dataclass(frozen=True)
class Run:
    """What a bug's case did `before` its fix and `after` it: the failures, or why it can't be run."""

    bug: Bug
    before: tuple[Observation, ...]
    after: tuple[Observation, ...]
    unsupported: str | None

    @property
    def fails(self) -> bool:
        """Whether it fails before the fix, in a way that the report describes."""
        return any(failure.kind in self.bug.kinds for failure in self.before)

    @property
    def passes(self) -> bool:
        """Whether it runs and passes after the fix."""
        return not self.after and self.unsupported is None

    @property
    def shown(self) -> bool:
        """Whether it goes as it must."""
        return self.fails and self.passes


def _run(console: Console, runner: Runner, bug: Bug) -> Run:
    """Run `bug` on both backends and print what happened."""
    before, after = (runner.verdict(case) for case in (bug.case_before, bug.case_after))
    run = Run(bug, before.failures, after.failures, after.unsupported or before.unsupported)
    console.print(Text.assemble((bug.name, "bold"), f"  {bug.title}"))
    console.print(Text(f"  before  {bug.backend_before}: {_result(run.before)}", style="green" if run.fails else "red"))
    found = run.unsupported or _result(run.after)
    console.print(Text(f"  after   {bug.backend_after}: {found}", style="green" if run.passes else "red"))
    return run


def _result(failures: Sequence[Observation]) -> str:
    if not failures:
        return "passes"
    return f"fails, {failures[0].kind}: {failures[0].message.splitlines()[0]}"


def _results(chosen: Sequence[Bug], runs: dict[str, Run]) -> Table:
    """What came of each bug in a line."""
    table = _table("bug", "before the fix", "after it")
    for bug in chosen:
        run = runs.get(bug.name)
        if run is None:
            table.add_row(bug.name, Text(f"not here: {bug.why_not_here}", style="dim"), "")
            continue
        before, after = (_in_short(failures) for failures in (run.before, run.after))
        table.add_row(
            bug.name,
            Text(before, style="" if run.fails else "red"),
            Text("can't run" if run.unsupported else after, style="" if run.passes else "red"),
        )
    return table


def _in_short(failures: Sequence[Observation]) -> str:
    if not failures:
        return "passes"
    return f"{failures[0].kind} at {failures[0].place}" if failures[0].place else failures[0].kind


def _table(name: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(name, no_wrap=True)
    for title in others:
        table.add_column(title, overflow="fold")
    return table


def _chosen(names: tuple[str, ...], *, project: str | None, bug_class: str | None, runnable: bool | None) -> list[Bug]:
    """The bugs that all filters let through. BadInput if none is left."""
    found = [
        bug
        for bug in _named(names, load_bugs())
        if project in (None, bug.project) and bug_class in (None, bug.bug_class) and runnable in (None, bug.reproduced)
    ]
    if not found:
        raise BadInput("no bug is all of that: take an option away; attnfuzz bugs list shows them all")
    return found


def _named(names: tuple[str, ...], bugs: Sequence[Bug]) -> list[Bug]:
    known = {bug.name: bug for bug in bugs}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else "attnfuzz bugs list names them."
            raise BadInput(f"no bug is called {name!r}: {hint}")
    return [known[name] for name in dict.fromkeys(names)] or list(bugs)
