"""`attnfuzz report` and `attnfuzz compare`: the reports of a campaign, and the differences between two."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.campaign.causes import Cause
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.cli.answers import Differences
from attnfuzz.harness.cli.campaign_answer import campaign_answer
from attnfuzz.harness.cli.given import find_by_name
from attnfuzz.harness.cli.other_homes import kind_of_log, refuse_other_home
from attnfuzz.harness.cli.terminal import (
    BadInput,
    Terminal,
    answer,
    details,
    new_table,
    print_line,
    print_sentences,
    warn,
)
from attnfuzz.harness.report.cause_view import title_of_cause, view_of
from attnfuzz.harness.report.compare import BackendChange, Comparison, compare
from attnfuzz.harness.report.files import Reports, Source, locate
from attnfuzz.harness.report.markdown import render_comparison
from attnfuzz.harness.report.verdict import verdict
from attnfuzz.harness.verdict.printable import in_a_line, printable
from attnfuzz.harness.verdict.wording import count, replay_line


def report(
    *,
    home: Path,
    campaign: str | None,
    html: Path | None,
    junit: Path | None,
    markdown: Path | None,
    issues: tuple[tuple[str, Path], ...],
) -> None:
    """Write the requested reports of a campaign; by default all, next to its log."""
    source = _located(home, campaign)
    if (kind := kind_of_log(source.log)) is not None:
        if markdown is not None or issues:
            raise BadInput(f"{source.folder} is a campaign of {kind.command}: give --html or --junit")
        kind.report(source.log, html=html, junit=junit)
        return
    standing = source.standing()
    reports = Reports.of(source, standing)
    asked: list[tuple[Path, Callable[[], bytes]]] = [
        (file, render)
        for file, render in ((html, reports.html), (junit, reports.junit), (markdown, reports.markdown))
        if file is not None
    ]
    for name, file in issues:
        finding = find_by_name(standing.findings, name, str(source.folder))
        asked.append((file, partial(reports.issue, view_of(reports.causes, finding))))
    for trouble in reports.troubles:
        warn(f"Warning: {in_a_line(trouble)}")
    print_sentences(Terminal(), f"{verdict(standing).text}.")
    files = [file for file, _ in asked]
    for file, render in asked:
        file.write_bytes(render())
    if not asked:
        written = reports.write_all(source.folder)
        files = [written.html, written.junit, written.markdown, *written.issues]
    for file in files:
        print_line(details(), f"Wrote {file}.")
    answer(campaign_answer(source.log.parent.name, source.home, standing, files))


def _located(home: Path, campaign: str | None) -> Source:
    """Return the campaign of that ID in the home, by default the last one; or that at a path."""
    if campaign is not None and campaign not in Home(home).ids() and Path(campaign).exists():
        return locate(Path(campaign))
    return locate(home, campaign)


def compare_campaigns(*, before: Path, after: Path, markdown: Path | None) -> None:
    """Print the differences between two campaigns."""
    for path in (before, after):
        refuse_other_home(path, "compare the states in attnfuzz findings list")
    sources = locate(before), locate(after)
    stands = sources[0].standing(), sources[1].standing()
    comparison = compare(*stands)
    print_comparison(Terminal(), details(), comparison)
    for source, standing in zip(sources, stands, strict=True):
        if number := len(source.not_run(standing)):
            text = (
                f"{source.folder} did not run {count(number, 'open finding')} of its home: see attnfuzz findings list"
            )
            print_line(details(), text)
    if markdown is not None:
        markdown.write_text(render_comparison(comparison))
        print_line(details(), f"Wrote {markdown}.")
    answer(_differences(comparison))


def _differences(comparison: Comparison) -> Differences:
    def names(causes: Sequence[Cause]) -> tuple[str, ...]:
        return tuple(cause.name for cause in causes)

    return Differences(
        before=comparison.before,
        after=comparison.after,
        caveats=comparison.caveats,
        appeared=names(comparison.appeared),
        fixed=names(comparison.fixed),
        not_seen_again=names(comparison.unseen),
        still_there=names(comparison.still),
        runs_per_second=comparison.rates,
    )


_MOST_AXES = 3


def print_comparison(console: Console, details: Console, comparison: Comparison) -> None:
    """Print caveats and causes, then, as details, the environments and each backend's numbers."""
    print_line(details, f"{comparison.before} → {comparison.after}", "bold")
    for caveat in comparison.caveats:
        print_line(details, f"Note: {caveat}.", "yellow")
    for title, causes, style in (
        ("Appeared", comparison.appeared, "red"),
        ("Fixed", comparison.fixed, "green"),
        ("Not seen again", comparison.unseen, ""),
        ("Still there", comparison.still, ""),
    ):
        for cause in causes:
            new = comparison.grown.get(cause.name, 0) if cause in comparison.still else 0
            more = f" ({count(new, 'failure')} not seen before)" if new else ""
            line = f"{title}: {title_of_cause(cause)}{more}\n  {replay_line(cause.findings[0].path)}"
            print_line(console, line, style)
    if comparison.nothing is not None:
        print_line(console, comparison.nothing, "" if comparison.left_out else "green")
    for change in comparison.environment:
        print_line(details, f"{change.name}: {change.before or 'absent'} → {change.after or 'absent'}")
    print_line(details, f"{comparison.rates[0]:.1f} → {comparison.rates[1]:.1f} runs per second")
    for backend in comparison.backends:
        details.print()
        _print_backend(details, backend)


def _print_backend(console: Console, change: BackendChange) -> None:
    numbers = ("before", "after", "ratio")
    table = new_table(printable(change.name), *numbers, numbers=numbers)
    before, after = change.before, change.after
    _add(table, "cases", (before.tally.searched, after.tally.searched), "{:,.0f}")
    _add(table, "runs", (before.tally.cases, after.tally.cases), "{:,.0f}")
    _add(table, "ms per run", change.milliseconds, "{:.1f}")
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
