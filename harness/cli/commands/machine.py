"""`attnfuzz backends`: the backends, and whether this machine can run them."""

from typing import Any

import click

from attnfuzz.harness.cli import options


@click.command()
@click.option("--runnable", is_flag=True, help="Only print the names of the backends that run here, without revisions.")
@click.option(
    "--margins", is_flag=True, help="Show how close outputs come to the bounds of each backend's noise model."
)
@click.option(
    "--home",
    type=options.PathTo(exists=True, file_okay=False),
    metavar="DIR",
    help="With --margins: those of this home's campaigns, too.  [default: attnfuzz-out, if it exists]",
)
@options.device_option("Only the backends of this device.")
@options.tree_option("The backends of this source tree of {engine}.")
@click.argument("named", nargs=-1, metavar="[NAME]...")
@options.answer_options("only the names of the backends")
def backends(**given: Any) -> None:
    """List the backends, and whether they run here.

    Without a NAME, lists all except those of files, source trees and releases. Shows the features that each supports.
    With --margins, shows for each dtype of queries the judged rows and the largest margin of each tier, error over
    bound: T1 a number, T2 a row, T3 all rows, T4 the LSE, T5 exact probes. At 0.1, an error ten times as large as any
    so far passes.
    """
    from attnfuzz.harness.cli import backends

    backends.backends(**given)
