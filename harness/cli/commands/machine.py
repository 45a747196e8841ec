"""`attnfuzz backends`: the backends, and whether this machine can run them."""

from typing import Any

import click

from attnfuzz.harness.cli import options


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
