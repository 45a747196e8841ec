"""`attnfuzz backends`, `build` and `calibrate`: what this machine can run, and how precisely."""

from typing import Any

import click

from attnfuzz.harness.cli import options

FEWEST_ROWS = 1000
"""Rows that a fit needs."""


@click.command()
@click.option("--runnable", is_flag=True, help="Only print the names of the backends that run here, without revisions.")
@options.device_option("Only the backends of this device.")
@options.tree_option("The backends of this source tree of {engine}.")
@click.argument("named", nargs=-1, metavar="[NAME]...")
@options.answer_options("the names of the backends")
def backends(**given: Any) -> None:
    """List the backends (all that need no file, tree or release, if none is named).

    Shows the features that each supports, and whether it runs on this machine.
    """
    from attnfuzz.harness.cli import backends

    backends.backends(**given)


@click.command()
@click.option(
    "--backend",
    "names",
    multiple=True,
    metavar="NAME",
    help="A backend to compile for; may be given several times.  [default: all that run on the GPU]",
)
@click.option(
    "--jobs", type=options.counted(most=1024), help="Files to compile in parallel.  [default: $MAX_JOBS, or cores]"
)
@click.option(
    "--arch", metavar="9.0a", help="Architecture to compile for, also without a GPU.  [default: the visible GPUs]"
)
@options.answer_options("the result")
def build(**given: Any) -> None:
    """Compile the modules that GPU backends need, in parallel, and list those that can't be compiled.

    Modules that exist cost little; those that failed are compiled again. Exits with 0 even if modules failed: cases
    that need them count as unsupported. Exits with 2 if nothing can be compiled here.
    """
    from attnfuzz.harness.cli import build

    build.build(**given)


@click.command()
@options.backends_option("A backend that passes")
@click.option(
    "--rows",
    type=options.counted(FEWEST_ROWS),
    default=100_000,
    show_default=True,
    help="Output rows, one per token and head, for each dtype of queries: half to fit, half to test the fit.",
)
@options.seed_option("Draw the cases of an earlier calibration again.")
@options.output_option("Folder for one JSON file per backend.  [default: attnfuzz-calibrations]", folder=True)
@click.option("--plot", "plots", type=options.PathTo(file_okay=False), help="Folder for one PNG per backend.")
@options.answer_options("the path of each calibration")
def calibrate(**given: Any) -> None:
    """Measure the error of correct backends on this machine, and fit their noise models to it.

    A fit only tightens the noise model that a backend has without it. Calibrate backends that pass.
    """
    from attnfuzz.harness.cli import calibrate

    calibrate.calibrate(**given)
