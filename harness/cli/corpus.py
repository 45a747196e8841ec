"""`attnfuzz corpus`: look at the cases that every campaign runs first, add to them, drop what is superfluous."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.cli.exits import BadInput
from attnfuzz.harness.cli.given import (
    PathTo,
    tell,
)
from attnfuzz.harness.cli.terminal import (
    Terminal,
    echo,
)
from attnfuzz.harness.corpus import Corpus, Kept, Why
from attnfuzz.harness.findings.finding import case_path
from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case

corpus_option = click.option(
    "--corpus",
    "folder",
    type=PathTo(),
    default=Home(Path("attnfuzz-out")).corpus,
    show_default=True,
    help="The corpus: a folder, which is made if need be.",
)


@click.group()
def corpus() -> None:
    """The cases that a campaign runs before it draws any."""


@corpus.command("list")
@corpus_option
@click.option("--backend", metavar="NAME", help="Only the cases of this backend.")
def list_cases(folder: Path, backend: str | None) -> None:
    """List what is kept and why, in the order in which it is run."""
    kept = _open(folder).kept(backend)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("case", "backend", "kept for"):
        table.add_column(title, overflow="fold", no_wrap=title == "case")
    for each in sorted(kept, key=lambda each: (each.case.backend, each.entry.why.rank, each.entry.case)):
        table.add_row(each.entry.case, each.case.backend, _reason(each))
    console = Terminal()
    if kept:
        console.print(table)
    console.print(_totals(kept))


@corpus.command("add")
@corpus_option
@click.argument("paths", type=PathTo(exists=True), nargs=-1, required=True, metavar="CASE.json|FINDING_DIR ...")
def add_cases(folder: Path, paths: tuple[Path, ...]) -> None:
    """Keep these cases for good: every campaign runs them first. All are looked at before any is kept."""
    cases = [_case_of_steps(path) for path in paths]
    into = _open(folder)
    added = sum(into.keep(case, why=Why.ADDED) is not None for case in cases)
    echo(f"{count(added, 'case')} added to {folder}; {len(cases) - added} there already.")


@corpus.command("merge")
@corpus_option
@click.argument("other", type=PathTo(exists=True, file_okay=False), metavar="OTHER")
def merge_corpora(folder: Path, other: Path) -> None:
    """Take over what is new in another corpus: failures, larger margins, and cases that reach more."""
    taken = _open(folder).merge(_open(other))
    echo(f"{count(taken, 'case')} of {other} taken over into {folder}.")


@corpus.command("prune")
@corpus_option
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def prune_cases(folder: Path, *, dry_run: bool) -> None:
    """Drop cases that reach nothing which the others do not reach; failures and the largest margins stay."""
    pruned = _open(folder)
    before = len(pruned.kept())
    gone = pruned.superfluous() if dry_run else pruned.prune()
    for kept in gone if dry_run else ():
        echo(str(kept.path))
    echo(f"{len(gone)} of {count(before, 'case')} {'would be ' if dry_run else ''}dropped.")


def _open(folder: Path) -> Corpus:
    opened = Corpus(folder)
    for trouble in opened.troubles:
        tell(f"Warning: {trouble}")
    return opened


def _case_of_steps(path: Path) -> Case:
    case = case_file.load(case_path(path))
    if not isinstance(case, Case):
        raise BadInput(f"{path} is made of literal calls, which a search can't use: give a case made of steps")
    return case


def _reason(kept: Kept) -> str:
    margins = ", ".join(f"{tier} {margin:.2g}" for tier, margin in sorted(kept.entry.margins.items()))
    return f"{kept.entry.why} ({margins})" if margins else kept.entry.why.value


def _totals(kept: Sequence[Kept]) -> str:
    by_reason = Counter(each.entry.why for each in kept)
    reasons = ", ".join(f"{by_reason[why]} for {why}" for why in Why if by_reason[why])
    return f"{count(len(kept), 'case')}{': ' if reasons else ''}{reasons}."
