"""`attnfuzz report`: what came of a campaign, or what changed between two."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.cli.given import PathTo, find_by_name
from attnfuzz.harness.cli.terminal import Terminal, echo, new_table, print_line, tell
from attnfuzz.harness.defects.results import read_score
from attnfuzz.harness.report.cause_view import title_of, view_of
from attnfuzz.harness.report.compare import BackendChange, Comparison, compare
from attnfuzz.harness.report.files import Reports, Source, locate
from attnfuzz.harness.report.markdown import render_comparison
from attnfuzz.harness.report.verdict import verdict
from attnfuzz.harness.verdict.printable import in_a_line, printable
from attnfuzz.harness.verdict.wording import count, replay_line

_file = PathTo(dir_okay=False)
_path = PathTo()


@click.command()
@click.argument("path", type=_path, metavar="DIR")
@click.argument("other", type=_path, metavar="[DIR]", required=False)
@click.option("--campaign", metavar="ID", help="The campaign of DIR, instead of its last one.")
@click.option("--html", type=_file, help="Write only what is asked for: a page that opens from disk,")
@click.option("--junit", type=_file, help="JUnit XML,")
@click.option("--markdown", type=_file, help="a summary, or with two folders the comparison, for GitHub,")
@click.option(
    "--issue",
    "issues",
    type=(str, _file),
    multiple=True,
    metavar="FINDING FILE",
    help="a finding's cause as an issue's text.",
)
@click.option("--defects", type=_file, help="Show the planted-defect score that attnfuzz defects run --json wrote.")
def report(
    *,
    path: Path,
    other: Path | None,
    campaign: str | None,
    html: Path | None,
    junit: Path | None,
    markdown: Path | None,
    issues: tuple[tuple[str, Path], ...],
    defects: Path | None,
) -> None:
    """Write the reports of a campaign beside its log, or print what changed from the first DIR to the second.

    DIR is the --out folder of a campaign, the folder of one campaign in it, or an event log. A campaign that still
    runs, or was killed, is reported as far as it came.

    Exits with 0, also if there are findings, or with 2 if there is nothing to report.
    """
    source = locate(path, campaign)
    if other is not None:
        if campaign or html or junit or issues or defects:
            raise click.UsageError("two folders are compared: only --markdown goes with that")
        _compare(source, locate(other), markdown)
        return
    score = None if defects is None else read_score(defects)
    standing = source.standing()
    reports = Reports.of(source, standing, score)
    asked: list[tuple[Path, Callable[[], bytes]]] = [
        (file, render)
        for file, render in ((html, reports.html), (junit, reports.junit), (markdown, reports.markdown))
        if file is not None
    ]
    for name, file in issues:
        finding = find_by_name(standing.findings, name, str(path))
        asked.append((file, partial(reports.issue, view_of(reports.causes, finding))))
    for trouble in reports.troubles:
        tell(f"Warning: {in_a_line(trouble)}")
    echo(f"{verdict(standing).text}.")
    for file, render in asked:
        file.write_bytes(render())
        echo(f"Wrote {file}.")
    if not asked:
        written = reports.write_all(source.folder)
        for file in (written.html, written.junit, written.markdown, *written.issues):
            echo(f"Wrote {file}.")


def _compare(before: Source, after: Source, markdown: Path | None) -> None:
    stands = before.standing(), after.standing()
    comparison = compare(*stands)
    print_comparison(Terminal(), comparison)
    for source, standing in zip((before, after), stands, strict=True):
        if number := len(source.not_run(standing)):
            echo(f"{source.folder} did not run {count(number, 'open finding')} of its home: see attnfuzz findings list")
    if markdown is not None:
        markdown.write_text(render_comparison(comparison))
        echo(f"Wrote {markdown}.")


_MOST_AXES = 3


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print what can't be compared, then findings, surroundings, and each backend's numbers."""
    print_line(console, f"{comparison.before} → {comparison.after}", "bold")
    for caveat in comparison.caveats:
        print_line(console, f"Note: {caveat}.", "yellow")
    for title, causes, style in (
        ("Appeared", comparison.appeared, "red"),
        ("Fixed", comparison.fixed, "green"),
        ("Not seen again", comparison.unseen, ""),
        ("Still there", comparison.still, ""),
    ):
        for cause in causes:
            new = comparison.grown.get(cause.name, 0) if cause in comparison.still else 0
            more = f" ({count(new, 'failure')} not seen before)" if new else ""
            line = f"{title}: {title_of(cause)}{more}\n  {replay_line(cause.findings[0].path)}"
            print_line(console, line, style)
    if comparison.nothing is not None:
        print_line(console, comparison.nothing, "" if comparison.left_out else "green")
    for change in comparison.environment:
        print_line(console, f"{change.name}: {change.before or 'not there'} → {change.after or 'not there'}")
    print_line(console, f"{comparison.rates[0]:.1f} → {comparison.rates[1]:.1f} cases per second")
    for backend in comparison.backends:
        console.print()
        _print_backend(console, backend)


def _print_backend(console: Console, change: BackendChange) -> None:
    numbers = ("before", "after", "ratio")
    table = new_table(printable(change.name), *numbers, numbers=numbers)
    before, after = change.before, change.after
    _add(table, "cases", (before.tally.cases, after.tally.cases), "{:,.0f}")
    _add(table, "ms per case", change.milliseconds, "{:.1f}")
    _add(table, "worker deaths", (before.tally.deaths, after.tally.deaths), "{:,.0f}")
    _add(table, "pairs reached", (len(before.pairs), len(after.pairs)), "{:,.0f}")
    for margin in change.margins:
        _add(table, f"largest margin of {margin.tier}", (margin.before, margin.after), "{:.3g}")
    console.print(table)
    for title, counted in (("gained", change.gained), ("lost", change.lost)):
        if counted:
            pairs = count(counted.total(), "pair")
            print_line(console, f"{title} {pairs}: {_axes(counted)}")


def _add(table: Table, name: str, values: Sequence[float | None], form: str) -> None:
    before, after = values
    shown = ["-" if value is None else form.format(value) for value in values]
    ratio = f"{after / before:.2f}" if before and after is not None else ""
    table.add_row(Text(printable(name)), *shown, ratio)


def _axes(counted: Counter[str]) -> str:
    shown = [f"{axes} {number}" for axes, number in counted.most_common(_MOST_AXES)]
    rest = len(counted) - _MOST_AXES
    return ", ".join(shown) + (f", and {rest} more" if rest > 0 else "")
