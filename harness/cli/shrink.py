"""`attnfuzz shrink`: the smallest case that fails like a given one."""

import shlex
from pathlib import Path

import click
from rich.text import Text

from attnfuzz.harness.campaign.plan import ALPHA, spent_per_output
from attnfuzz.harness.cli.exits import BadInput, Exit
from attnfuzz.harness.cli.given import (
    Duration,
    EngineTree,
    PathTo,
    case_at,
    contract_option,
    counted,
    tell,
    tree_option,
)
from attnfuzz.harness.cli.terminal import (
    Terminal,
)
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.shrink import CaseRejected, Shrunk, shrink
from attnfuzz.harness.verdict.describe import describe_any
from attnfuzz.harness.verdict.wording import count
from attnfuzz.reference import case_file


@click.command("shrink")
@click.argument("path", type=PathTo(exists=True), metavar="CASE.json | FINDING_DIR")
@click.option(
    "--output",
    "-o",
    type=PathTo(dir_okay=False),
    help="Where to write the smaller case; without it beside the given file or folder, as NAME.small.json.",
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--runs", type=counted(), default=2000, show_default=True, help="Run at most so many cases.")
@click.option("--time", "seconds", type=Duration(), default="10m", show_default=True, help="Take no longer.")
@click.option("--backend", metavar="NAME", help="Shrink what fails on another backend.")
@tree_option("Shrink what fails on this source tree of {engine}, whatever release it was found in.")
@click.option(
    "--repeat",
    type=counted(most=10_000),
    default=1,
    show_default=True,
    help="Run each case up to so many times: one that fails now and then fails.",
)
@click.option(
    "--same-kernels",
    is_flag=True,
    help="Keep head dims, page size and heads per KV head of calls, so that they run on the kernels that they ran on.",
)
@contract_option
@click.pass_context
def shrink_case(
    ctx: click.Context,
    *,
    path: Path,
    output: Path | None,
    force: bool,
    runs: int,
    seconds: float,
    backend: str | None,
    tree: EngineTree | None,
    repeat: int,
    same_kernels: bool,
    contract: str,
) -> None:
    """Write the smallest case that fails like a given one.

    Its first failure is what counts: a smaller case that fails in another way is not taken.

    Exits with 0 if the case passes, so that there is nothing to shrink; 1 if it fails and a case was written; 2 if it
    could not be run.
    """
    target = output or _beside(path)
    if not target.parent.is_dir():
        raise BadInput(f"{target.parent} is no folder: name a file in one with -o.")
    if target.exists() and not force:
        raise BadInput(f"{target} is there already: name another file with -o, or write over it with --force.")
    case = case_at(path, backend, tree)
    console = Terminal()
    alpha = spent_per_output(ALPHA, cases=1)
    with Runner([case.backend], contract=contract, alpha=alpha, progress=tell) as runner:
        try:
            budget = ShrinkBudget(runs=runs, seconds=seconds)
            shrunk = shrink(case, runner, budget=budget, repeat=repeat, same_kernels=same_kernels)
        except CaseRejected as error:
            raise BadInput(f"{case.backend} rejects this case: {error}. Try another --backend.") from error
    if shrunk is None:
        console.print(Text(f"{path} passes on {case.backend}: there is nothing to shrink."))
        return
    case_file.save(target, shrunk.case)
    # The notes are the same, and last of all.
    before, after = describe_any(case, notes=False), describe_any(shrunk.case)
    console.print(Text(f"before\n{before}\n\nafter\n{after}\n"))
    console.print(Text(f"{_summary(shrunk, same=shrunk.case == case)}\n"), soft_wrap=True)
    quoted = shlex.quote(str(target))
    for command in (f"replay {quoted}", f"triage {quoted}", f"export {quoted} -o repro.py"):
        console.print(f"  attnfuzz {command}", markup=False, soft_wrap=True)
    ctx.exit(Exit.FOUND)


def _beside(path: Path) -> Path:
    # Not in a finding's folder: a campaign that finds a smaller case of its own puts a new folder in its place.
    if path.is_dir():
        # The folder that one is in has a name too.
        named = path if path.name and path.name != ".." else path.resolve()
        return named.parent / f"{named.name}.small.json"
    return path.with_suffix(".small.json")


def _summary(shrunk: Shrunk, *, same: bool) -> str:
    failure = shrunk.observation
    where = f" in {failure.kernel}" if failure.kernel else ""
    what = "no smaller case fails so" if same else "the smaller case fails as the first does"
    text = f"{failure.kind}: {failure.place}{where}: {what} ({count(shrunk.runs, 'run')})."
    return text if shrunk.steady else f"{text} It did not come back in a fresh worker: try --repeat."
