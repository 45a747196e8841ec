"""What changed between two campaigns, on a terminal."""

from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.campaign.events import AnyFinding
from attnfuzz.harness.report.compare import BackendChange, Comparison
from attnfuzz.harness.verdict.printable import printable
from attnfuzz.harness.verdict.wording import count, headline, replay_line

_MOST_AXES = 3


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print what can't be compared, then findings, surroundings, and each backend's numbers."""

    def line(text: str, style: str = "") -> None:
        console.print(Text(printable(text), style=style), soft_wrap=True)

    line(f"{comparison.before} → {comparison.after}", "bold")
    for caveat in comparison.caveats:
        line(f"Note: {caveat}.", "yellow")
    for title, findings, style in (
        ("Appeared", comparison.appeared, "red"),
        ("Fixed", comparison.fixed, "green"),
        ("Not seen again", comparison.unseen, ""),
        ("Still there", comparison.still, ""),
    ):
        for finding in findings:
            line(f"{title}: {_words(finding)}", style)
    if comparison.nothing is not None:
        line(comparison.nothing, "" if comparison.left_out else "green")
    for change in comparison.environment:
        line(f"{change.name}: {change.before or 'not there'} → {change.after or 'not there'}")
    line(f"{comparison.rates[0]:.1f} → {comparison.rates[1]:.1f} cases per second")
    for backend in comparison.backends:
        console.print()
        _print_backend(console, backend)


def _words(finding: AnyFinding) -> str:
    return f"{headline(finding.case.backend, finding.observation)}\n  {replay_line(finding.path)}"


def _print_backend(console: Console, change: BackendChange) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(Text(printable(change.name)), overflow="fold")
    for title in ("before", "after", "ratio"):
        table.add_column(title, justify="right", no_wrap=True)
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
            console.print(Text(printable(f"{title} {pairs}: {_axes(counted)}")), soft_wrap=True)


def _add(table: Table, name: str, values: Sequence[float | None], form: str) -> None:
    before, after = values
    shown = ["-" if value is None else form.format(value) for value in values]
    ratio = f"{after / before:.2f}" if before and after is not None else ""
    table.add_row(Text(printable(name)), *shown, ratio)


def _axes(counted: Counter[str]) -> str:
    shown = [f"{axes} {number}" for axes, number in counted.most_common(_MOST_AXES)]
    rest = len(counted) - _MOST_AXES
    return ", ".join(shown) + (f", and {rest} more" if rest > 0 else "")
