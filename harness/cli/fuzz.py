"""`attnfuzz fuzz`: a campaign, shown live."""

from pathlib import Path

import click

from attnfuzz.harness.campaign.plan import ALPHA, MOST_BACKENDS, PRESETS, Plan
from attnfuzz.harness.cli import given
from attnfuzz.harness.cli.campaign import command_began, resume_campaign, start_campaign
from attnfuzz.harness.findings.ledger import DEFAULT_NAME
from attnfuzz.reference.case import Guard

DEFAULT_LEDGER = Path(DEFAULT_NAME)

GOES_WITH_RESUME = {"jobs", "ray", "database", "ledger", "until_finding"}


@click.command()
@given.backends_option("What to test")
@click.option("--examples", type=given.counted(), help="Cases to draw for each backend.")
@click.option("--time", "seconds", type=given.duration, help="Time to search in all, like 90s, 10m or 1h30m.")
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="quick",
    show_default=True,
    help="Examples or time, and jobs, where they are not given.",
)
@given.seed_option("Draw the cases of an earlier campaign again.")
@click.option("--jobs", type=given.JOBS, help="Processes that search at the same time.")
@given.contract_option
@click.option(
    "--alpha",
    type=given.FalseAlarms(),
    default=ALPHA,
    show_default=True,
    help="False alarms to expect of the whole campaign, before confirmation, if the backends are right.",
)
@click.option("--guard", type=click.Choice(["left", "right"]), help="The edge that is guarded, instead of either.")
@given.out_option("attnfuzz-out", "Home of the campaigns, kept from night to night: findings, corpus, logs, reports.")
@click.option("--no-leaning", is_flag=True, help="Draw as if all was new.")
@click.option("--database", metavar="FOLDER|redis://...", help="Where Hypothesis keeps and shares failing examples.")
@click.option(
    "--ledger",
    type=given.PathTo(exists=True, dir_okay=False),
    help=f"File of known findings.  [default: {DEFAULT_NAME}, if it is there]",
)
@click.option(
    "--until-finding",
    is_flag=True,
    help="Stop at the first failure that the ledger does not know, once it is minimized and filed.",
)
@click.option("--ray", metavar="ADDRESS|local", help="Run the jobs as actors of a Ray cluster.")
@click.option(
    "--resume",
    type=given.PathTo(exists=True, file_okay=False),
    metavar="DIR",
    help="Go on with the last campaign of this home, which was killed or interrupted, as it was begun.",
)
@click.pass_context
def fuzz(
    ctx: click.Context,
    *,
    backends: tuple[str, ...],
    examples: int | None,
    seconds: float | None,
    preset: str,
    seed: int,
    jobs: int | None,
    contract: str,
    alpha: float,
    guard: str | None,
    out: Path,
    no_leaning: bool,
    database: str | None,
    ledger: Path | None,
    until_finding: bool,
    ray: str | None,
    resume: Path | None,
) -> None:
    """Draw ragged batches, run them on backends in processes that may die, and judge every output.

    Exits with 0 if nothing fails that the ledger does not know, 1 if something does, 2 if the harness itself failed or
    the ledger is wrong, 130 after Ctrl-C or SIGTERM.
    """
    if resume is not None:
        given.check_alone(ctx, "a campaign", but=GOES_WITH_RESUME)
        again = resume_campaign(
            resume, jobs=jobs, ray=ray, database=database, ledger=ledger, until_finding=until_finding
        )
        ctx.exit(again)
    if examples is not None and seconds is not None:
        raise click.UsageError("--examples and --time are both budgets: give one of them")
    if len(backends) > MOST_BACKENDS:
        raise click.UsageError(f"{len(backends):,} times --backend: give it {MOST_BACKENDS:,} times at most")
    chosen = PRESETS[preset]
    if examples is None and seconds is None:
        examples, seconds = chosen.examples, chosen.seconds
    ctx.exit(
        start_campaign(
            Plan(
                backends=backends,
                examples=examples,
                seconds=seconds,
                seed=seed,
                jobs=jobs or chosen.jobs,
                contract=contract,
                alpha=alpha,
                guard=None if guard is None else Guard(guard),
                out=out,
                preset=preset,
                leaning=not no_leaning,
                database=database,
                ledger=ledger or (DEFAULT_LEDGER if DEFAULT_LEDGER.exists() else None),
                ray=ray,
                until_finding=until_finding,
                begun=command_began(),
            )
        )
    )
