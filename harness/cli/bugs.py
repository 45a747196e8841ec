"""`attnfuzz bugs`: the reported bugs, each of which must fail before its fix and pass after it."""

import click
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.bugs import Bug, load_bugs
from attnfuzz.harness.check import Runner
from attnfuzz.harness.cli.exits import BadInput, Exit
from attnfuzz.harness.cli.given import tell
from attnfuzz.harness.failures import Observation


@click.group(invoke_without_command=True)
@click.pass_context
def bugs(ctx: click.Context) -> None:
    """The bugs that were reported to serving engines, as cases."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_bugs)


@bugs.command("list")
def list_bugs() -> None:
    """List the reported bugs and where they were reported."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("bug", "what goes wrong", "source"):
        table.add_column(title, overflow="fold", no_wrap=title == "bug")
    for bug in load_bugs():
        table.add_row(bug.name, bug.title, bug.source)
    Console(highlight=False).print(table)


@bugs.command("run")
@click.argument("names", nargs=-1, metavar="[NAME ...]")
@click.pass_context
def run_bugs(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Run reported bugs (all, if none is named) before and after their fix.

    Exits with 0 if each fails before its fix in a way that the report describes, and passes after it; 1 if not.
    """
    chosen = _chosen(names)
    console = Console(highlight=False)
    backends = tuple(dict.fromkeys(name for bug in chosen for name in (bug.backend_before, bug.backend_after)))
    with Runner(backends, progress=tell) as runner:
        shown = [_show(console, runner, bug) for bug in chosen]
    ctx.exit(Exit.CLEAN if all(shown) else Exit.FOUND)


def _chosen(names: tuple[str, ...]) -> list[Bug]:
    known = {bug.name: bug for bug in load_bugs()}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInput(f"no bug is called {', '.join(unknown)}: name some of {', '.join(known)}")
    return [known[name] for name in names] or list(known.values())


def _show(console: Console, runner: Runner, bug: Bug) -> bool:
    """Run `bug` on both backends and print what happened; whether it went as it must."""
    before = runner.verdict(replace(bug.case, backend=bug.backend_before)).failures
    after = runner.verdict(replace(bug.case, backend=bug.backend_after)).failures
    fails = any(failure.kind in bug.kinds for failure in before)
    console.print(Text.assemble((bug.name, "bold"), f"  {bug.title}"))
    console.print(Text(f"  before  {bug.backend_before}: {_result(before)}", style="green" if fails else "red"))
    console.print(Text(f"  after   {bug.backend_after}: {_result(after)}", style="red" if after else "green"))
    return fails and not after


def _result(failures: tuple[Observation, ...]) -> str:
    if not failures:
        return "passes"
    return f"fails, {failures[0].kind}: {failures[0].message.splitlines()[0]}"
