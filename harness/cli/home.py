"""`attnfuzz findings` and `attnfuzz corpus`: what a home keeps from night to night."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.cli.given import PathTo, find_by_name, out_option
from attnfuzz.harness.cli.terminal import BadInput, Terminal, echo, new_table, tell
from attnfuzz.harness.corpus import Corpus, Why
from attnfuzz.harness.findings.archive import forget, read_records
from attnfuzz.harness.findings.finding import REPORT, case_path, text_beside
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.verdict.printable import in_a_line
from attnfuzz.harness.verdict.wording import count, date, headline_of, replay_line
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case

_STYLES = {State.NEW: "bold red", State.RETURNED: "bold red", State.OPEN: "red", State.FIXED: "green"}

_VERSIONS = ("attnfuzz", "torch", "flashinfer-python", "driver", "gpu")
"""What a person looks at first; environment.json has the rest."""

_out_option = out_option("attnfuzz-out", "Folder of the campaigns.", exists=True)


@click.group()
def findings() -> None:
    """What the campaigns in a folder found, with its history."""


@findings.command("list")
@_out_option
def list_findings(out: Path) -> None:
    """List the findings by cause: their states, and when they failed first and last.

    Below the finding that stands for a cause are the others that show it.
    """
    table = new_table("state", "first seen", "last seen", "finding", whole=("state", "first seen", "last seen"))
    causes = _by_cause(_records(Home(out)))
    for first, *others in causes:
        _list(table, first, needs=f" (needs {', '.join(first.needs)})" if first.needs else "")
        for record in others:
            _list(table, record, indent="  ")
    if not causes:
        tell(f"{out} has no findings.")
        return
    console = Terminal()
    console.print(table)
    if table.row_count > len(causes):
        console.print(f"{count(len(causes), 'cause')}, {count(table.row_count, 'finding')}.")


def _by_cause(records: Iterable[Record]) -> list[list[Record]]:
    """The records of each cause, the one that stands for it first."""
    causes: dict[str, list[Record]] = {}
    for record in records:
        causes.setdefault(record.cause or record.name, []).append(record)
    return [sorted(group, key=lambda record: record.name != cause) for cause, group in causes.items()]


def _list(table: Table, record: Record, *, indent: str = "", needs: str = "") -> None:
    state = Text(record.state, style=_STYLES[record.state])
    name = in_a_line(f"{indent}{record.name}{needs}")
    table.add_row(state, date(record.first_seen.time), date(record.last_seen.time), name)


@findings.command("show")
@click.argument("name")
@_out_option
def show_finding(name: str, out: Path) -> None:
    """Show one finding: its report, and what each campaign saw of it. A part of its name is enough."""
    record = find_by_name(_records(Home(out)), name, str(out))
    console = Terminal()
    console.print(Text.assemble((record.state, _STYLES[record.state]), "  ", headline_of(record)))
    if record.needs:
        console.print(Text(in_a_line(f"  needs {', '.join(record.needs)}")))
    if record.cause:
        console.print(Text(in_a_line(f"  same cause as {record.cause}")), soft_wrap=True)
    for seen in record.sightings:
        versions = ", ".join(f"{name} {text}" for name, text in seen.environment.items() if name in _VERSIONS)
        line = f"  {date(seen.time)}  {'failed' if seen.failed else 'passed'}  {versions}".rstrip()
        console.print(Text(in_a_line(line)))
    report = text_beside(record.path, REPORT)
    if report is not None:
        console.print(Text(f"\n{report.rstrip()}"))
    console.print(Text(f"\n{replay_line(str(record.path))}"), soft_wrap=True)


@findings.command("forget")
@click.argument("name")
@_out_option
def forget_finding(name: str, out: Path) -> None:
    """Remove a finding and its history: if it fails again, it is new."""
    home = Home(out)
    with home.locked():
        record = find_by_name(_records(home), name, str(out))
        # Not by a part of the name: nothing brings it back.
        if record.name != name:
            raise BadInput(f"{out} has no finding {name!r}: did you mean {record.name!r}?")
        forget(record.path)
    tell(f"Forgot {name}.")


def _records(home: Home) -> list[Record]:
    records, troubles = read_records(home.findings)
    for text in troubles:
        tell(f"Warning: {in_a_line(text)}")
    return records


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
    table = new_table("case", "backend", "kept for", whole=("case",))
    for each in sorted(kept, key=lambda each: (each.case.backend, each.entry.why.rank, each.entry.case)):
        margins = ", ".join(f"{tier} {margin:.2g}" for tier, margin in sorted(each.entry.margins.items()))
        table.add_row(each.entry.case, each.case.backend, each.entry.why.value + (f" ({margins})" if margins else ""))
    console = Terminal()
    if kept:
        console.print(table)
    by_reason = Counter(each.entry.why for each in kept)
    reasons = ", ".join(f"{by_reason[why]} for {why}" for why in Why if by_reason[why])
    console.print(f"{count(len(kept), 'case')}{': ' if reasons else ''}{reasons}.")


@corpus.command("add")
@corpus_option
@click.argument("paths", type=PathTo(exists=True), nargs=-1, required=True, metavar="CASE.json|FINDING_DIR ...")
def add_cases(folder: Path, paths: tuple[Path, ...]) -> None:
    """Keep these cases for good: every campaign runs them first. All are looked at before any is kept."""
    cases = []
    for path in paths:
        case = case_file.load(case_path(path))
        if not isinstance(case, Case):
            raise BadInput(f"{path} is made of literal calls, which a search can't use: give a case made of steps")
        cases.append(case)
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
