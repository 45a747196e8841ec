"""`attnfuzz export`: a case as a script that runs without this project."""

from pathlib import Path

import click

from attnfuzz.harness.cli.exits import BadInput
from attnfuzz.harness.cli.given import case_at
from attnfuzz.harness.export import CannotExport, export_script


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path), metavar="CASE.json | FINDING_DIR")
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write it to a file.")
def export(path: Path, output: Path | None) -> None:
    """Write a stand-alone script that shows what a case does: it needs torch, and nothing of attnfuzz."""
    try:
        script = export_script(case_at(path))
    except CannotExport as error:
        raise BadInput(f"{path} can't be exported: {error}") from error
    if output is None:
        click.echo(script, nl=False)
    else:
        output.write_text(script)
        click.echo(f"Wrote {output}.", err=True)
