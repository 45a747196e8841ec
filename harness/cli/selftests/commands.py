"""`attnfuzz bugs`, `defects`, `mutants`, `calibrate`: bugs that a search must find, and noise of correct backends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from attnfuzz.harness.cli import options
from attnfuzz.harness.cli.terminal import STARTING, Exit, tell

FEWEST_ROWS = 1000
"""Minimum number of rows for a fit."""

TIERS = ("T0", "T1", "T2", "T3", "T4", "T5", "T6")


class ListByDefault(options.InOrder):
    """A group that treats arguments without a subcommand as those of `list`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `list` unless a subcommand or help is requested."""
        asked = args and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if asked else ["list", *args])


@click.group(cls=ListByDefault)
def bugs() -> None:
    """List, show and run reported bugs of serving engines.

    Without a command, lists them.
    """


def _filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the names and options that choose among the bugs."""
    for decorate in (
        click.option(
            "--runnable/--not-runnable",
            default=None,
            help="Only bugs that fail on this machine, or only those that can't be run here.",
        ),
        click.option("--class", "bug_class", metavar="CLASS", help="Only bugs of this class, like short-kv."),
        click.option("--project", metavar="PROJECT", help="Only bugs of this project, like sglang."),
        click.argument("names", nargs=-1, metavar="[NAME]..."),
    ):
        command = decorate(command)
    return command


@bugs.command("list")
@_filters
@options.answer_options("only the names of the bugs")
def list_bugs(**given: Any) -> None:
    """List reported bugs, and the backend that shows each.

    Without a NAME, lists all.
    """
    from attnfuzz.harness.cli.selftests import bugs

    bugs.list_bugs(**given)


@bugs.command("show")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@options.answer_options("only the titles")
def show_bugs(**given: Any) -> None:
    """Show reported bugs: symptom, versions, sources, and the case."""
    from attnfuzz.harness.cli.selftests import bugs

    bugs.show_bugs(**given)


@bugs.command("run")
@_filters
@options.device_option("Run the bugs that have a counterpart on this device, on cases that it can run.")
@click.option(
    "--releases",
    is_flag=True,
    help="Run bugs of an engine's releases on the release with the bug and the one with the fix.",
)
@options.answer_options("only the result")
def run_bugs(**given: Any) -> Exit:
    """Run reported bugs before and after their fix.

    Without a NAME, runs all.

    Exits with 0 if every bug that can run here fails before its fix in a way that the report describes, and passes
    after it (if there is a backend without the bug); 1 if not. With --device cuda, bugs without GPU kernels run on
    native ones, and are marked; with --device cpu, bugs that only GPU kernels have are skipped.
    """
    tell(STARTING)
    from attnfuzz.harness.cli.selftests import bugs

    return bugs.run_bugs(**given)


@click.group(cls=ListByDefault)
def defects() -> None:
    """List and search the planted defects that measure the judge.

    Without a command, lists them.
    """


@defects.command("list")
@options.answer_options("only the names of the defects")
def list_defects() -> None:
    """List the planted defects.

    Shows the mistake, its layer and class of bug, and its source.
    """
    from attnfuzz.harness.cli.selftests import defects

    defects.list_defects()


@defects.command("run")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--examples", type=options.counted(), default=2000, show_default=True, help="Cases to draw for each defect."
)
@click.option("--seed", type=options.SEED, default=1, show_default=True, help="First seed to draw cases with.")
@click.option(
    "--seeds",
    type=options.counted(most=1000),
    default=1,
    show_default=True,
    help="Number of seeds, starting at --seed; each defect is searched with each.",
)
@click.option("--jobs", type=options.JOBS, default=2, show_default=True, help="Processes that search in parallel.")
@click.option(
    "--without",
    type=click.Choice(TIERS),
    metavar="TIER",
    multiple=True,
    help="Switch off a tier of the judge, T0 to T6; may be given several times.",
)
@click.option(
    "--pin",
    type=options.PathTo(file_okay=False),
    metavar="DIR",
    help="Folder for the shrunk case of each defect's first failure; the seconds include shrinking.",
)
@options.answer_options("only the result")
def run_defects(**given: Any) -> Exit:
    """Search planted defects until the first failure of each.

    Without a NAME, searches all. Searches as a campaign does.

    Exits with 0 if at least 95% are detected by every seed, 1 if not, 2 if the harness itself failed.
    """
    tell(STARTING)
    from attnfuzz.harness.cli.selftests import defects

    return defects.run_defects(**given)


@click.command()
@click.argument("backend", required=False, metavar="[BACKEND]")
@click.option(
    "--code",
    "named",
    multiple=True,
    type=options.PathTo(),
    metavar="PATH",
    help="A file or a folder whose code is changed, in a release or a tree below its folder; may be given several "
    "times.  [default: an engine's attention, the folder of a backend of attnfuzz, or a user's file]",
)
@click.option(
    "--changed-since",
    "since",
    metavar="COMMIT",
    help="Only change lines that differ from those of this commit of the tree.",
)
@click.option(
    "--sample",
    type=options.counted(),
    metavar="N",
    help="Run this many mutants, chosen at random with --seed, as many of each kind of change as there are.  "
    "[default: all]",
)
@click.option(
    "--examples",
    type=options.counted(),
    default=200,
    show_default=True,
    help="Cases to draw. A mutant is run on those that execute its line.",
)
@click.option(
    "--time",
    "seconds",
    type=options.duration,
    default="1m",
    show_default=True,
    help="Time for each mutant, like 20s or 1m.",
)
@options.tree_option("A source tree of {engine} with the backend.")
@click.option("--seed", type=options.SEED, default=1, show_default=True, help="Seed for drawing cases and the sample.")
@click.option("--jobs", type=options.JOBS, default=1, show_default=True, help="Mutants that are run in parallel.")
@options.home_option("Folder of the table, and of failing cases.", Path("attnfuzz-mutants"))
@click.option("--resume", is_flag=True, help="Continue the run of --home with its own options.")
@options.answer_options("only the result")
@click.pass_context
def mutants(ctx: click.Context, /, *, resume: bool, **given: Any) -> Exit:
    """Change a planner's code, one place at a time, and see which changes a search finds.

    BACKEND is like sglang==0.5.23:trtllm_mha, or FILE.py:NAME for a planner of your own. A mutant has another operator,
    constant, comparison, condition, slice bound, argument or name, or lacks a statement. It is made in the loaded code:
    files stay as they are. The table is also written to mutants.md and mutants.json, after each mutant.

    A mutant with the same plans hands the same arguments to all kernels in all cases that reach it. Exits with 0 if all
    others fail, 1 if some survive or refuse, 2 if no case passes on the unchanged code, 130 after Ctrl-C.
    """
    if resume:
        options.check_alone(ctx, "a run")
    elif given["backend"] is None:
        raise click.UsageError("name a backend, like sglang==VERSION:NAME or FILE.py:NAME")
    tell(STARTING)
    from attnfuzz.harness.cli.selftests import mutants

    return mutants.resume_mutants(given["home"]) if resume else mutants.mutants(**given)


@click.command()
@options.backends_option("A backend that passes")
@click.option(
    "--rows",
    type=options.counted(FEWEST_ROWS),
    default=100_000,
    show_default=True,
    help="Output rows, one per token and head, for each dtype of queries: half to fit, half to test the fit.",
)
@click.option("--time", "seconds", type=options.duration, help="Give up the rest after this time.")
@click.option("--jobs", type=options.JOBS, default=1, show_default=True, help="Processes that measure in parallel.")
@options.ledger_option
@options.seed_option()
@options.output_option("Folder for one JSON file per backend.  [default: attnfuzz-calibrations]", folder=True)
@click.option(
    "--plot", "plots", type=options.PathTo(file_okay=False), metavar="DIR", help="Folder for one PNG per backend."
)
@options.answer_options("only the path of each calibration")
def calibrate(**given: Any) -> Exit:
    """Fit noise models to the measured error of correct backends.

    A fit only tightens the noise model that a backend has without it. Calibrate backends that pass; cases with all
    features of a known failure of the ledger are left out. Exits with 2 if one can't be calibrated; the others are.
    """
    tell(STARTING)
    from attnfuzz.harness.cli.selftests import calibrate

    return calibrate.calibrate(**given)
