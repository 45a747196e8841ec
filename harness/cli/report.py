"""`attnfuzz report`: what came of a campaign, or what changed between two."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from attnfuzz.harness.cli.comparison import print_comparison
from attnfuzz.harness.cli.given import (
    PathTo,
    tell,
)
from attnfuzz.harness.cli.named import (
    find_by_name,
)
from attnfuzz.harness.cli.terminal import (
    Terminal,
    echo,
)
from attnfuzz.harness.defects.results import read_score
from attnfuzz.harness.report.compare import compare
from attnfuzz.harness.report.files import Reports
from attnfuzz.harness.report.markdown import render_comparison
from attnfuzz.harness.report.sources import Source, locate
from attnfuzz.harness.report.verdict import verdict
from attnfuzz.harness.verdict.printable import in_a_line
from attnfuzz.harness.verdict.wording import count

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
    "--issue", "issues", type=(str, _file), multiple=True, metavar="FINDING FILE", help="a finding as an issue's text."
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
        asked.append((file, partial(reports.issue, find_by_name(standing.findings, name, str(path)))))
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
