"""`attnfuzz build` and `import`: FlashInfer's modules, and calls that it dumped."""

from pathlib import Path
from typing import Any

import click

from attnfuzz.harness.cli import options

CONTENTS = ("values", "statistics", "seed")


@click.command()
@click.option(
    "--backend",
    "names",
    multiple=True,
    metavar="NAME",
    help="A backend to compile for; may be given several times.  [default: all that run on the GPU]",
)
@click.option(
    "--jobs", type=options.counted(most=1024), help="Files to compile in parallel.  [default: $MAX_JOBS, or cores]"
)
@click.option("--arch", metavar="9.0a", help="Architecture to compile for; needs no GPU.  [default: the visible GPUs]")
@click.option(
    "--quick",
    is_flag=True,
    help="Compile only the modules that cover the most pairs of compile-time features"
    " in an estimated 3 minutes on 16 cores.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, 10_000, min_open=True),
    metavar="N",
    help="Compile only the modules that cover the most pairs of compile-time features in about this time here.",
)
@click.option(
    "--for",
    "changed",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Compile only modules whose sources include FILE, a header or source of FlashInfer, and those that they are"
    " used with; may be given several times.",
)
@click.option(
    "--archive",
    type=options.PathTo(dir_okay=False),
    metavar="FILE",
    help="Take compiled modules from FILE, compile only those that it lacks, and add each to it when it is ready.",
)
@options.answer_options("only the result")
def build(**given: Any) -> None:
    """Compile the modules that GPU backends need.

    Lists modules that can't be compiled. Existing modules take little time; failed ones are compiled again. Exits with
    0 even if modules failed: cases that need them count as unsupported. Exits with 2 if nothing can be compiled here.
    """
    from attnfuzz.harness.cli.flashinfer import build

    build.build(**given)


@click.command("import")
@click.argument("folder", type=options.PathTo(), metavar="DUMP_DIR")
@click.option("--list", "listing", is_flag=True, help="Only list the calls of the dump.")
@click.option(
    "--call",
    "number",
    type=options.counted(),
    help="Number of the call to import, from --list.  [default: the last one that crashed and has a backend]",
)
@click.option(
    "--earlier",
    type=options.counted(0),
    default=0,
    show_default=True,
    help="Number of calls before it to import as well.",
)
@click.option(
    "--contents",
    type=click.Choice(CONTENTS),
    default=CONTENTS[0],
    show_default=True,
    help="Contents of floating point tensors: as recorded; random with the same mean and deviation; standard normal.",
)
@click.option("--backend", metavar="NAME", help="Backend to run the case on.  [default: one that has the function]")
@click.option("--seed", type=options.SEED, default=0, show_default=True, help="Seed of random contents.")
@options.output_option("File of the case.  [default: FUNCTION-ID.json]")
@options.answer_options("only the path of the case")
def import_dump(**given: Any) -> None:
    """Convert a call that FlashInfer dumped into a case.

    FlashInfer dumps calls with FLASHINFER_LOGLEVEL=10, even one that crashes the process. The case keeps the pages
    that the call refers to, in memory that is guarded on both sides.
    """
    from attnfuzz.harness.cli.flashinfer import import_dump

    import_dump.import_dump(**given)
