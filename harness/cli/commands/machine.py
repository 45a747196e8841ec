"""`attnfuzz init`, `backends` and `doctor`: a project's files, the backends, and this machine."""

from typing import Any

import click

from attnfuzz.harness.cli import options
from attnfuzz.harness.cli.terminal import STARTING, Exit, tell


@click.command()
@options.answer_options("only the names of the files", json=False)
def init(**given: Any) -> None:
    """Write the files of a project that fuzzes its own kernel into this folder.

    A backend, a test, a ledger, and a workflow with its requirements. Files that exist are kept.
    """
    from attnfuzz.harness.cli import init

    init.init(**given)


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


@click.command()
@click.option(
    "--calls",
    "called",
    multiple=True,
    metavar="NAME",
    help="Backend whose calls are made first, one in each mode, to name the arguments that are refused; may be given "
    "several times.  [default: those that exist for the visible GPU alone, if it is a Blackwell one]",
)
@options.answer_options("only the rows that fail")
def doctor(**given: Any) -> Exit:
    """Examine this machine in some two minutes, for a table that can be pasted into an issue.

    Shows versions, the reasons for which backends do not run, which planted stray accesses and defects are detected,
    one backend of each library on plain cases, cases per second beside the expected number, and on a GPU whether core
    dumps and compute-sanitizer work.

    Exits with 0 if no row FAILS, 1 if one does, 2 if the examination itself failed. A row that could not be measured
    gives the reason, and does not fail.
    """
    tell(STARTING)
    from attnfuzz.harness.cli import doctor

    return doctor.doctor(**given)
