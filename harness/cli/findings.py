"""`attnfuzz findings`: what all campaigns of a home found, and forgetting it."""

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.cli.exits import BadInput
from attnfuzz.harness.cli.given import (
    PathTo,
    tell,
)
from attnfuzz.harness.cli.named import (
    find_by_name,
)
from attnfuzz.harness.cli.terminal import (
    Terminal,
)
from attnfuzz.harness.findings.archive import forget, read_records
from attnfuzz.harness.findings.finding import REPORT, text_beside
from attnfuzz.harness.findings.record import Record, Sighting
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.verdict.printable import in_a_line
from attnfuzz.harness.verdict.wording import date, headline, replay_line

_STYLES = {State.NEW: "bold red", State.RETURNED: "bold red", State.OPEN: "red", State.FIXED: "green"}

_out_option = click.option(
    "--out",
    type=PathTo(exists=True, file_okay=False),
    default=Path("attnfuzz-out"),
    show_default=True,
    help="Folder of the campaigns.",
)


@click.group()
def findings() -> None:
    """What the campaigns in a folder found, with its history."""


@findings.command("list")
@_out_option
def list_findings(out: Path) -> None:
    """List the findings: their states, and when they failed first and last."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title in ("state", "first seen", "last seen", "finding"):
        table.add_column(title, overflow="fold", no_wrap=title != "finding")
    for record in _records(Home(out)):
        state = Text(record.state, style=_STYLES[record.state])
        table.add_row(state, date(record.first_seen.time), date(record.last_seen.time), in_a_line(record.name))
    if table.row_count:
        Terminal().print(table)
    else:
        tell(f"{out} has no findings.")


@findings.command("show")
@click.argument("name")
@_out_option
def show_finding(name: str, out: Path) -> None:
    """Show one finding: its report, and what each campaign saw of it. A part of its name is enough."""
    record = find_by_name(_records(Home(out)), name, str(out))
    console = Terminal()
    console.print(
        Text.assemble((record.state, _STYLES[record.state]), "  ", headline(record.case.backend, record.observation))
    )
    for sighting in record.sightings:
        console.print(Text(in_a_line(f"  {_line(sighting)}")))
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


def _line(sighting: Sighting) -> str:
    versions = ", ".join(f"{name} {text}" for name, text in sighting.environment.items() if name in _VERSIONS)
    return f"{date(sighting.time)}  {'failed' if sighting.failed else 'passed'}  {versions}".rstrip()


_VERSIONS = ("attnfuzz", "torch", "flashinfer-python", "driver", "gpu")
"""What a person looks at first; environment.json has the rest."""
