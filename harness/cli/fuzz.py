"""`attnfuzz fuzz`: a campaign, shown live."""

import secrets
from pathlib import Path

import click

from attnfuzz.harness.campaign.plan import PRESETS, Plan
from attnfuzz.harness.cli.campaign import run_campaign
from attnfuzz.harness.cli.given import Duration, contract_option
from attnfuzz.harness.defaults import DEFAULT_BACKENDS
from attnfuzz.reference.case import Guard


@click.command()
@click.option(
    "--backend",
    "backends",
    multiple=True,
    default=DEFAULT_BACKENDS,
    show_default=True,
    metavar="NAME",
    help="What to test; may be given several times. FILE.py:NAME is a backend of yours.",
)
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
    guard: str | None,
    out: Path,
) -> None:
    """Draw ragged batches, run them on backends in processes that may die, and judge every output.

    Exits with 0 if nothing was found, 1 if something was, 2 if the harness itself failed, 130 after Ctrl-C.
    """
    if examples is not None and seconds is not None:
        raise click.UsageError("--examples and --time are both budgets: give one of them")
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
                guard=None if guard is None else Guard(guard),
                out=out,
            )
        )
    )
