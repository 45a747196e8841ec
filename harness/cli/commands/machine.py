"""`attnfuzz backends`, `build` and `calibrate`: the backends, kernels and noise models of this machine."""

from typing import Any

import click

from attnfuzz.harness.cli import options
from attnfuzz.harness.cli.terminal import STARTING, tell

FEWEST_ROWS = 1000
"""Minimum number of rows for a fit."""


@click.command()
@click.option("--runnable", is_flag=True, help="Only print the names of the backends that run here, without revisions.")
@options.device_option("Only the backends of this device.")
@options.tree_option("The backends of this source tree of {engine}.")
@click.argument("named", nargs=-1, metavar="[NAME]...")
@options.answer_options("only the names of the backends")
def backends(**given: Any) -> None:
    """List the backends, and whether they run here.

    Without a NAME, lists all except those of files, source trees and releases. Shows the features that each supports.
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
@click.option("--arch", metavar="9.0a", help="Architecture to compile for; needs no GPU.  [default: the visible GPUs]")
@click.option(
    "--quick",
    is_flag=True,
    help="Compile only the modules that cover the most pairs of compile-time features"
    " in an estimated 3 minutes on 16 cores.",
)
@click.option(
    "--archive",
    type=options.PathTo(dir_okay=False),
    metavar="FILE",
    help="Take compiled modules from FILE, compile only those that it lacks, and add each to it when it is ready.",
)
@options.answer_options("only the result")
def build(**given: Any) -> None:
    """Compile the modules that GPU backends need.

    Lists modules that can't be compiled. Existing modules take little time; failed ones are compiled again. Exits with
    0 even if modules failed: cases that need them count as unsupported. Exits with 2 if nothing can be compiled here.
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
@options.seed_option()
@options.output_option("Folder for one JSON file per backend.  [default: attnfuzz-calibrations]", folder=True)
@click.option(
    "--plot", "plots", type=options.PathTo(file_okay=False), metavar="DIR", help="Folder for one PNG per backend."
)
@options.answer_options("only the path of each calibration")
def calibrate(**given: Any) -> None:
    """Fit noise models to the measured error of correct backends.

    A fit only tightens the noise model that a backend has without it. Calibrate backends that pass.
    """
    tell(STARTING)
    from attnfuzz.harness.cli import calibrate

    calibrate.calibrate(**given)
