"""`attnfuzz bisect` and `attnfuzz sweep`: failures by release."""

from pathlib import Path
from typing import Any

import click

from attnfuzz.harness.cli import options
from attnfuzz.harness.cli.terminal import STARTING, Exit, tell

EXAMPLES = 1000
"""Cases that a sweep draws for each backend of a release by default."""


@click.command()
@click.argument("path", type=options.PathTo(exists=True), required=False, metavar="[CASE.json|FINDING_DIR]")
@click.option(
    "--versions",
    metavar="VERSIONS",
    help="Released versions, like 0.6.8..latest or 0.6.8,0.6.9; those without --site are installed by pip.",
)
@click.option(
    "--site", "sites", multiple=True, metavar="VERSION=DIR", help="A folder that a version was installed into."
)
@click.option(
    "--package", default="flashinfer-python", show_default=True, metavar="NAME", help="Package of the versions."
)
@click.option(
    "--script",
    type=options.PathTo(exists=True, dir_okay=False),
    help="Run this instead of a case: it exits with 0 if it passes, 1 if the fault shows, 2 if it can't run. "
    'The line that it prints after "seen: " is shown.',
)
@click.option(
    "--timeout",
    "seconds",
    type=options.duration,
    default="30m",
    show_default=True,
    help="Stop a run that takes longer.",
)
@click.option("--all", "every", is_flag=True, help="Run every version, even if bisection needs fewer.")
@options.answer_options("only the conclusion")
def bisect(**given: Any) -> Exit:
    """Find the releases in which a fault began and ended.

    Runs the stand-alone script of a case with released versions of FlashInfer, or a script of your own. Each version
    is installed into a folder of its own in attnfuzz's cache (ATTNFUZZ_CACHE); every other package is that of this
    Python. If the oldest and the newest version differ, the versions between are bisected; if they agree, all are run.

    Exits with 0 if no version fails, 1 if one does, 2 if none could be run.
    """
    tell(STARTING)
    from attnfuzz.harness.cli.releases import bisect

    return bisect.bisect(**given)


@click.command()
@click.argument("package", required=False, metavar="[ENGINE]")
@click.argument("versions", required=False, metavar="[VERSIONS]")
@click.option(
    "--backend",
    "kinds",
    multiple=True,
    metavar="NAME",
    help="A backend to test in each release; may be given several times.  [default: all that can be tested]",
)
@click.option(
    "--examples",
    type=options.counted(0),
    help=f"Cases to draw for each backend of a release; 0 to run known cases alone.  [default: {EXAMPLES}]",
)
@click.option("--time", "seconds", type=options.duration, help="Time to search each release, like 90s, 10m or 1h30m.")
@click.option(
    "--case",
    "cases",
    multiple=True,
    type=options.PathTo(exists=True),
    metavar="CASE.json|FINDING_DIR",
    help="A failure to run in every release, in addition to the reported bugs; may be given several times.",
)
@options.tree_option("A source tree of {engine}, as the last release.")
@options.seed_option()
@click.option("--jobs", type=options.JOBS, default=1, show_default=True, help="Processes that search in parallel.")
@options.home_option("Folder of the table, of failing cases, and of campaigns and findings.", Path("attnfuzz-sweep"))
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the sweep of --home with its own options: releases that were searched are not searched again.",
)
@options.answer_options("only the result")
@click.pass_context
def sweep(ctx: click.Context, /, *, resume: bool, **given: Any) -> Exit:
    """Run known failures in an engine's releases, and fuzz them.

    Shows in which release each failure began and ended. ENGINE is like sglang, VERSIONS are like 0.5.9..latest, or
    0.5.9,0.5.11. A failure found in one release is run in all. The table is also written to sweep.md and sweep.json,
    after each release.

    Exits with 0 if no release fails, 1 if one does, 2 if none could be run, 130 after Ctrl-C.
    """
    if resume:
        options.check_alone(ctx, "a sweep")
    elif given["examples"] is not None and given["seconds"] is not None:
        raise click.UsageError("--examples and --time are both budgets: give one of them")
    tell(STARTING)
    from attnfuzz.harness.cli.releases import sweep

    return sweep.resume_sweep(given["home"]) if resume else sweep.sweep(**given)
