"""`attnfuzz replay`: run a case again and see whether it still fails."""

from pathlib import Path

import click
from rich.text import Text

from attnfuzz.harness.campaign.plan import ALPHA, spent_per_output
from attnfuzz.harness.cli.exits import BadInput, Exit
from attnfuzz.harness.cli.given import (
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
from attnfuzz.harness.sandbox.check import Runner, render_failure
from attnfuzz.harness.verdict.wording import count, left_unjudged


@click.command()
@click.argument("path", type=PathTo(exists=True), metavar="CASE.json | FINDING_DIR")
@click.option("--backend", metavar="NAME", help="Run the case on another backend, such as one with a fix.")
@tree_option("Run the case on this source tree of {engine}, whatever release it was found in.")
@click.option("--times", type=counted(), default=1, show_default=True, help="Run it so many times.")
@contract_option
@click.pass_context
def replay(
    ctx: click.Context, *, path: Path, backend: str | None, tree: EngineTree | None, times: int, contract: str
) -> None:
    """Run a case again, in a process that may die.

    Exits with 0 if it passes now, 1 if it still fails (once is enough), 2 if it could not be run.
    """
    console = Terminal()
    case = case_at(path, backend, tree)
    # As much as a campaign of this one case: what a longer one found by a hair must not pass for want of alpha.
    alpha = spent_per_output(ALPHA, cases=1)
    with Runner([case.backend], contract=contract, alpha=alpha, progress=tell) as runner:
        verdicts = [runner.verdict(case) for _ in range(times)]
        failed = [verdict for verdict in verdicts if verdict.failures]
        shown = runner.explained(case, failed[0]) if failed else None
    for verdict in verdicts:
        if verdict.unsupported is not None:
            raise BadInput(f"{case.backend} rejects this case: {verdict.unsupported}. Try another --backend.")
    if shown is not None:
        console.print(Text(render_failure(case, shown).rstrip()))
    again = f" {len(failed) or times} of {count(times, 'time')}" if times > 1 else ""
    if failed:
        console.print()
        console.print(f"{path} still fails on {case.backend}{again}.", style="bold red", soft_wrap=True)
        ctx.exit(Exit.FOUND)
    if verdicts[0].unanswered:
        console.print(left_unjudged(verdicts[0].unanswered).capitalize() + ".", soft_wrap=True)
    console.print(f"{path} passes on {case.backend}{again}.", style="bold green", soft_wrap=True)
