"""`attnfuzz fuzz`: a campaign, shown live."""

import secrets
from pathlib import Path

import click

from attnfuzz.harness.campaign.plan import ALPHA, PRESETS, Plan
from attnfuzz.harness.cli.campaign import run_campaign
from attnfuzz.harness.cli.given import Duration, backends_option, contract_option
from attnfuzz.reference.case import Guard


@click.command()
@backends_option("What to test")
@click.option("--examples", type=click.IntRange(min=1), help="Cases to draw for each backend.")
@click.option("--time", "seconds", type=Duration(), help="Time to search in all, like 90s, 10m or 1h30m.")
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="quick",
    show_default=True,
    help="Examples or time, and jobs, where they are not given.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Draw the cases of an earlier campaign again.")
@click.option("--jobs", type=click.IntRange(min=1, max=256), help="Processes that search at the same time.")
@contract_option
@click.option(
    "--alpha",
    type=float,
    default=ALPHA,
    show_default=True,
    help="False alarms to expect of the whole campaign, before confirmation, if the backends are right.",
)
@click.option("--guard", type=click.Choice(["left", "right"]), help="The edge that is guarded, instead of either.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("attnfuzz-out"),
    show_default=True,
    help="Folder for findings and the event log.",
)
@click.pass_context
def fuzz(
    ctx: click.Context,
    *,
    backends: tuple[str, ...],
    examples: int | None,
    seconds: float | None,
    preset: str,
    seed: int | None,
    jobs: int | None,
    contract: str,
    alpha: float,
    guard: str | None,
    out: Path,
) -> None:
    """Draw ragged batches, run them on backends in processes that may die, and judge every output.

    Exits with 0 if nothing was found, 1 if something was, 2 if the harness itself failed, 130 after Ctrl-C.
    """
    if examples is not None and seconds is not None:
        raise click.UsageError("--examples and --time are both budgets: give one of them")
    if not 0 < alpha < 1:
        raise click.UsageError("--alpha is an expected number of false alarms: give one above 0 and below 1")
    chosen = PRESETS[preset]
    if examples is None and seconds is None:
        examples, seconds = chosen.examples, chosen.seconds
    ctx.exit(
        run_campaign(
            Plan(
                backends=tuple(dict.fromkeys(backends)),
                examples=examples,
                seconds=seconds,
                seed=secrets.randbits(32) if seed is None else seed,
                jobs=jobs or chosen.jobs,
                contract=contract,
                alpha=alpha,
                guard=None if guard is None else Guard(guard),
                out=out,
            )
        )
    )
