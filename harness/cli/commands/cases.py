"""`attnfuzz check`, `new`, `replay`, `triage`, `shrink`, `export` and `import`: commands on one or a few cases."""

from collections.abc import Callable
from typing import Any

import click

from attnfuzz.harness.cli import options
from attnfuzz.harness.cli.starting import start
from attnfuzz.harness.cli.terminal import Exit

TARGETS = ("native", "flashinfer")
REPEATS = 5
SANITIZERS = ("racecheck", "synccheck", "initcheck", "memcheck")


def _path_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the argument `path`, and the home in which a finding's name is looked up."""
    path = click.argument("path", type=options.CaseOrFinding(), metavar="CASE.json|FINDING")
    return path(options.home_of_finding(command))


def _elsewhere_options(verb: str, hint: str = "") -> Callable[..., Any]:
    """Return --backend and the engines' trees: where to run the case instead, as `backend` and `trees`."""
    backend = click.option("--backend", metavar="NAME", help=f"{verb} another backend{hint}.")
    tree = options.tree_option(f"{verb} this source tree of {{engine}}, whichever release the case is from.")
    return lambda command: backend(tree(command))


@click.command()
@click.argument("backend", metavar="FILE.py:NAME|BACKEND")
@options.answer_options("only whether all cases pass")
def check(**given: Any) -> Exit:
    """Run up to 20 plain cases on a backend, in a few seconds.

    Shows whether a function is called as it should be, before it is fuzzed: the cases have few requests, and no
    feature besides a mode, a layout and a dtype.

    Exits with 0 if all cases pass, 1 if one fails, 2 if none could be run.
    """
    start()
    from attnfuzz.harness.cli import check

    return check.check(**given)


@click.command()
@click.argument("backend", metavar="FILE.py:NAME|BACKEND")
@click.option("--mode", metavar="MODE", help="Mode of the step, such as decode or extend.  [default: any]")
@click.option("--q", "queries", type=options.lengths, metavar="N,...", help="Query tokens of each request.")
@click.option(
    "--kv", "keys", type=options.lengths, metavar="N,...", help="Keys of each request, with its new ones, such as 5,17."
)
@click.option(
    "--set",
    "fields",
    type=options.assignment,
    multiple=True,
    metavar="FIELD=VALUE",
    help="Value of any other field, such as page_size=16, dtype=float32, sinks=true or pages.spare=3; may be given "
    "several times. The reference of cases lists all fields.",
)
@options.output_option("File for the case.  [default: case.json]")
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
@options.answer_options("only whether it fails")
def new(**given: Any) -> Exit:
    """Write a case by hand, and run it.

    All that is not given is as in a plain case of the backend.

    Exits with 0 if it passes, 1 if it fails, 2 if it could not be made or run.
    """
    start()
    from attnfuzz.harness.cli import cases

    return cases.new(**given)


@click.command()
@_path_argument
@_elsewhere_options("Run the case on", ", such as one with a fix")
@options.repeat_option("Number of runs.  [default: 1; for a flaky finding, as many as its failure rate requires]")
@options.contract_option
@click.option(
    "--sanitizer",
    "tool",
    type=click.Choice(SANITIZERS),
    help="Run it once under this tool of compute-sanitizer, which takes 10 to 60 s.  [default: that of the "
    "finding, if one reported it]",
)
@options.answer_options("only whether it fails", "the case, if it passes")
def replay(**given: Any) -> Exit:
    """Run a case again in a worker process, or under compute-sanitizer.

    A flaky finding is repeated under the conditions that it was filed with (such as after other cases, or under load),
    until it fails, or until it would have failed with a probability of 99%.

    Exits with 0 if every run passes, 1 if one fails, 2 if the case could not be run.
    """
    if given["tool"] is not None and given["repeat"] is not None:
        raise click.UsageError("--sanitizer runs the case once: leave --repeat out")
    start()
    from attnfuzz.harness.cli import cases

    return cases.replay(**given)


@click.command()
@_path_argument
@_elsewhere_options("Run the case on")
@options.repeat_option(
    "Number of runs in fresh processes, and again in a single one, to detect races.",
    type=options.counted(2, options.MOST_REPEATS),
    default=REPEATS,
    show_default=True,
)
@options.contract_option
@options.answer_options("only the conclusion")
def triage(**given: Any) -> Exit:
    """Determine whether a kernel or its caller is at fault.

    Runs the case with guard pages on either side, with other outputs, contents and workspaces, eagerly and in a graph,
    and repeatedly. Also runs each of its calls alone, and compares it with attention to the keys that its arguments
    name.

    Exits with 0 if all runs pass, 1 if any fails, 2 if the case could not be run.
    """
    start()
    from attnfuzz.harness.cli import cases

    return cases.triage(**given)


@click.command()
@_path_argument
@options.output_option(
    "File for the smaller case.  [default: NAME.small.json, next to the given file, or in the home of the finding]"
)
@click.option("--force", is_flag=True, help="Overwrite a file that exists.")
@click.option("--max-runs", type=options.counted(), default=2000, show_default=True, help="Stop after this many runs.")
@click.option(
    "--time", "seconds", type=options.duration, default="10m", show_default=True, help="Stop after this time."
)
@_elsewhere_options("Shrink the failure on")
@options.repeat_option(
    "Maximum number of runs of each case until it fails, for a flaky failure.", default=1, show_default=True
)
@click.option(
    "--same-kernels",
    is_flag=True,
    help="Keep head dims, page size and heads per KV head of calls, so that the same compiled kernels run.",
)
@options.contract_option
@options.answer_options("only the result")
def shrink(**given: Any) -> Exit:
    """Write the smallest case that fails in the same way.

    Keeps the first failure of the case: a smaller case that fails in another way is rejected.

    Exits with 0 if the case passes, 1 if it fails and a smaller case was written, 2 if it could not be run.
    """
    start()
    from attnfuzz.harness.cli import cases

    return cases.shrink_case(**given)


@click.command()
@_path_argument
@click.option(
    "--for",
    "target",
    type=click.Choice(TARGETS),
    help="native: runs on a CPU, and contains the kernels' source. flashinfer: calls FlashInfer, on a GPU.  "
    "[default: flashinfer for a case on a GPU, else native]",
)
@click.option(
    "--carry",
    type=options.PathTo(exists=True),
    multiple=True,
    metavar="PATH",
    help="Your own file, or folder of files, that the script may contain; may be given several times.",
)
@click.option("--issue", is_flag=True, help="Write the text of an issue in markdown, with a script if it fits.")
@options.output_option("File to write.  [default: standard output]")
@options.answer_options("only the script", json=False)
def export(**given: Any) -> None:
    """Write a stand-alone script that reproduces a case.

    The script needs torch, but not attnfuzz.
    """
    start()
    from attnfuzz.harness.cli import cases

    cases.export(**given)
