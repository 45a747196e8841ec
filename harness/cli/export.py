"""`attnfuzz export`: a case as a script that runs without this project, or as the text of an issue."""

from pathlib import Path

import click

from attnfuzz.harness.cli.exits import BadInput
from attnfuzz.harness.cli.given import (
    PathTo,
    case_at,
)
from attnfuzz.harness.cli.terminal import (
    echo,
)
from attnfuzz.harness.export import CannotExport, Exporter, Target
from attnfuzz.harness.findings.environment import environment
from attnfuzz.harness.report.issue import render_issue
from attnfuzz.reference.case_file import AnyCase


@click.command()
@click.argument("path", type=PathTo(exists=True), metavar="CASE.json | FINDING_DIR")
@click.option(
    "--for",
    "target",
    type=click.Choice([target.value for target in Target]),
    callback=lambda _context, _option, value: None if value is None else Target(value),
    help="native (default): on a CPU, with the kernels' source. flashinfer: the same calls of FlashInfer, on a GPU.",
)
@click.option("--issue", is_flag=True, help="Write the text of an issue in markdown, with a script if it fits.")
@click.option("--output", "-o", type=PathTo(dir_okay=False), help="Write it to a file.")
def export(*, path: Path, target: Target | None, issue: bool, output: Path | None) -> None:
    """Write a stand-alone script that shows what a case does: it needs torch, and nothing of attnfuzz."""
    case = case_at(path)
    try:
        exporter = Exporter(case)
        text = _issue(case, exporter, target) if issue else exporter.script(target or Target.NATIVE)
    except CannotExport as error:
        raise BadInput(f"{path} can't be exported: {error}") from error
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text)
        echo(f"Wrote {output}.", err=True)


def _issue(case: AnyCase, exporter: Exporter, target: Target | None) -> str:
    """The text, with the script for `target`, or for any that it can be made for."""
    if exporter.seen is None:
        raise CannotExport("it passes, there is nothing to report")
    scripts: list[str] = []
    for each in Target if target is None else [target]:
        try:
            scripts.append(exporter.script(each))
        except CannotExport:
            # What can't be shown by itself can still be reported.
            continue
    return render_issue(case, exporter.seen, environment(), scripts)
