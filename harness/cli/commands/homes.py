"""`attnfuzz findings`, `attnfuzz ledger` and `attnfuzz corpus`: the contents of a home, and known findings."""

from typing import Any

import click

from attnfuzz.harness.cli import options


@click.group(cls=options.InOrder)
def findings() -> None:
    """List, show and forget the findings of a home."""


@findings.command("list")
@options.home_option(exists=True)
@options.answer_options("only the names of the findings", "the path of each finding")
def list_findings(**given: Any) -> None:
    """List the findings by cause.

    Shows their states, and when they failed first and last.

    The finding that represents a cause comes first; the others with the same cause are indented below it.
    """
    from attnfuzz.harness.cli import home

    home.list_findings(**given)


@findings.command("show")
@click.argument("name")
@options.home_option(exists=True)
@options.answer_options("only the report")
def show_finding(**given: Any) -> None:
    """Show a finding's report, and its result in each campaign.

    NAME may be a part of the name, or the path of the finding's folder.
    """
    from attnfuzz.harness.cli import home

    home.show_finding(**given)


@findings.command("forget")
@click.argument("name")
@options.home_option(exists=True)
def forget_finding(**given: Any) -> None:
    """Remove a finding and its history: if it fails again, it is new."""
    from attnfuzz.harness.cli import home

    home.forget_finding(**given)


@click.group(cls=options.InOrder)
def ledger() -> None:
    """Manage the file of known findings."""


@ledger.command("rewrite")
@click.argument(
    "path", type=options.PathTo(exists=True, dir_okay=False), default="attnfuzz-ledger.toml", metavar="FILE"
)
def rewrite_ledger(**given: Any) -> None:
    """Name features in a ledger as reports do now.

    Ledgers of earlier versions name some of them otherwise. Entries keep their meaning; the rest of the file is kept.
    """
    from attnfuzz.harness.cli import ledger as known

    known.rewrite_ledger(**given)


@click.group(cls=options.InOrder)
def corpus() -> None:
    """Manage the cases that a campaign runs first."""


@corpus.command("list")
@options.home_option()
@click.option("--backend", metavar="NAME", help="Only the cases of this backend.")
@options.answer_options("only the names of the cases")
def list_cases(**given: Any) -> None:
    """List the cases, and the reason why each is kept.

    They are listed in the order in which they are run.
    """
    from attnfuzz.harness.cli import home

    home.list_cases(**given)


@corpus.command("add")
@options.home_option()
@click.argument("paths", type=options.PathTo(exists=True), nargs=-1, required=True, metavar="CASE.json|FINDING_DIR...")
@options.answer_options("nothing")
def add_cases(**given: Any) -> None:
    """Add cases that every campaign runs first.

    If one is invalid, none is added. `attnfuzz corpus prune` keeps them.
    """
    from attnfuzz.harness.cli import home

    home.add_cases(**given)


@corpus.command("merge")
@options.home_option()
@click.argument("other", type=options.PathTo(exists=True, file_okay=False), metavar="OTHER_HOME")
@options.answer_options("nothing")
def merge_corpora(**given: Any) -> None:
    """Copy cases from the corpus of another home.

    Copies those that are new here: failures, larger margins, and cases that reach more.
    """
    from attnfuzz.harness.cli import home

    home.merge_corpora(**given)


@corpus.command("prune")
@options.home_option()
@click.option("--dry-run", is_flag=True, help="Only list the cases that would be dropped.")
@options.answer_options("only the cases that --dry-run lists")
def prune_cases(**given: Any) -> None:
    """Drop cases whose coverage other cases have.

    Failures and the cases with the largest margins stay.
    """
    from attnfuzz.harness.cli import home

    home.prune_cases(**given)
