"""`attnfuzz backends --margins`: how close the outputs of each backend have come to their bounds."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from rich.table import Table
from rich.text import Text

from attnfuzz.harness.backends.registry import fixed, resolve
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.cli.answers import BackendMargins, ListedMargins
from attnfuzz.harness.cli.terminal import Terminal, answer, is_quiet, new_table, print_line
from attnfuzz.harness.family import family_with
from attnfuzz.reference.noise import Origin
from attnfuzz.reference.recorded_margins import RecordedMargins, load, shipped

TIERS = ("T1", "T2", "T3", "T4", "T5")
"""The tiers with margins, without T6: a comparison of two outputs is near 1 if they differ at all."""

NOISE_WORDS = {Origin.UNKNOWN: "unknown kernel", Origin.THEORY: "theory", Origin.CALIBRATED: "calibrated"}


def print_margins(names: Sequence[str], home: Path) -> None:
    """Print the margins of the named backends that ship, and those of the campaigns of `home`, if it exists.

    Raises MarginsError if the home's file is damaged.
    """
    path = Home(home).margins
    records = [
        *((record, True) for record in shipped()),
        *((record, False) for record in (load(path) if path.exists() else ())),
    ]
    chosen = [_listed(record, from_us) for record, from_us in records if record.backend in names]
    known = {each.backend for each in chosen}
    without = tuple(name for name in names if name not in known and _runs_here(name))
    answer(BackendMargins(margins=tuple(chosen), without=without))
    console = Terminal()
    if is_quiet():
        for each in chosen:
            print_line(console, " ".join((each.backend, each.dtype, *_numbers(each))))
        return
    for source, group in groupby(sorted(chosen, key=_order), key=lambda each: _source(each, home)):
        console.print(Text(source, style="bold"))
        console.print(_table(list(group)))
        print_line(console)
    if without:
        console.print(Text(f"None recorded of: {', '.join(without)}. A campaign on a backend adds its own."))


def _runs_here(name: str) -> bool:
    """Return whether a backend with noise models runs here, and is no revision of another."""
    backend = resolve(name)
    judged = family_with(backend.capability).noise_dtypes(backend.capability)
    return name == fixed(name) and bool(judged) and backend.missing() is None


def _listed(record: RecordedMargins, from_us: bool) -> ListedMargins:
    return ListedMargins(
        backend=record.backend,
        dtype=record.dtype.value,
        rows=record.rows,
        margins=dict(record.margins),
        noise=NOISE_WORDS[record.noise.origin],
        architecture=record.architecture,
        machine=record.machine,
        date=record.date,
        versions=dict(record.versions),
        shipped=from_us,
    )


def _source(each: ListedMargins, home: Path) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in each.versions.items() if name != "python")
    where = each.machine if each.machine == each.architecture else f"{each.machine} ({each.architecture})"
    return f"{'Shipped' if each.shipped else f'Of {home}'}: {where}, {each.date}, {versions}"


def _order(each: ListedMargins) -> tuple[object, ...]:
    return not each.shipped, each.machine, each.date, sorted(each.versions.items()), each.backend, each.dtype


def _table(listed: Sequence[ListedMargins]) -> Table:
    table = new_table("backend", "dtype", "rows", *TIERS, "noise model", numbers=("rows", *TIERS))
    for each in listed:
        table.add_row(Text(each.backend), each.dtype, *_numbers(each), each.noise)
    return table


def _numbers(each: ListedMargins) -> Iterator[str]:
    yield f"{each.rows:,}"
    yield from (f"{each.margins[tier]:.2g}" if tier in each.margins else "-" for tier in TIERS)
