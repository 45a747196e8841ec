"""`attnfuzz fuzz`, `report` and `compare`."""

import os
from typing import Any

import click

from attnfuzz.harness.campaign.plan import ALPHA, MOST_BACKENDS, PRESETS
from attnfuzz.harness.cli import options
from attnfuzz.harness.cli.starting import share_torch
from attnfuzz.harness.cli.terminal import STARTING, Exit, details, print_line

GOES_WITH_RESUME = {"jobs", "ray", "ledger", "until_finding"}

GOES_WITH_SANITIZE = {"sanitize_seconds", "backends", "device", "built", "seed", "contract", "ledger"}

_FILE = options.PathTo(dir_okay=False)


@click.command()
@options.backends_option("A backend to test")
@click.option(
    "--examples",
    type=options.counted(),
    help="Cases to judge for each backend, without unsupported ones.",
)
@click.option("--time", "seconds", type=options.duration, help="Total time to search, like 90s, 10m or 1h30m.")
@click.option(
    "--sanitize",
    "sanitize_seconds",
    type=options.duration,
    help="Instead of a search, run a few small cases of each GPU backend, chosen to cover pairs of features, under "
    "compute-sanitizer's racecheck, synccheck and initcheck, for this time.",
)
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="quick",
    show_default=True,
    help="Size of the campaign by default: 1,000 examples, or 2 or 12 hours on all cores.",
)
@options.seed_option()
@click.option("--jobs", type=options.JOBS, help="Processes that search in parallel.")
@options.contract_option
@click.option(
    "--alpha",
    type=options.number,
    default=ALPHA,
    show_default=True,
    help="Expected number of false positives in the whole campaign, before confirmation, if the backends are correct.",
)
@click.option(
    "--guard",
    type=click.Choice(["left", "right"]),
    help="Guard this side of every tensor, instead of one chosen by each case.",
)
@options.home_option("Folder of campaigns, findings and corpus; keep it from night to night.")
@options.ledger_option
@click.option(
    "--until-finding",
    is_flag=True,
    help="Stop once the first failure that is not in the ledger has been minimized and filed, with its script.",
)
@click.option(
    "--promised",
    is_flag=True,
    help="Draw only calls that the API promises or refuses: no forms of arguments, edges or earlier uses of objects"
    " that it does not mention.",
)
@click.option(
    "--mode", "modes", multiple=True, metavar="MODE", help="Draw only steps in this mode; may be given several times."
)
@click.option(
    "--dtype",
    "dtypes",
    multiple=True,
    metavar="DTYPE",
    help="Draw only queries of this dtype, such as bfloat16; may be given several times.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="FEATURE",
    help="Draw only cases with this feature, in the words of reports and ledgers: window, mask=tree. Given several"
    " times: with all of them.",
)
@click.option(
    "--without",
    "never",
    multiple=True,
    metavar="FEATURE",
    help="Draw no case with this feature; may be given several times.",
)
@click.option("--ray", metavar="ADDRESS|local", help="Run the jobs as actors of a Ray cluster.")
@click.option(
    "--built",
    is_flag=True,
    help="Draw only geometries of GPU backends whose modules are compiled, as if ATTNFUZZ_BUILT were 1. Backends"
    " without any are skipped and named. Without --backend, all others are tested.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Continue the last campaign of --home, if it was killed or interrupted, with its own options.",
)
@options.answer_options("only the result", "a line for every slice of the search")
@click.pass_context
def fuzz(ctx: click.Context, /, *, resume: bool, built: bool, sanitize_seconds: float | None, **given: Any) -> Exit:
    """Search attention backends for failures.

    Draws ragged batches, runs them on the backends in worker processes, and judges every output.

    Exits with 0 if nothing fails except known findings, 1 if anything else does, 2 if the harness itself failed, the
    GPU does not answer any more, no case was judged, or the ledger is wrong, 130 after Ctrl-C or SIGTERM.
    """
    if resume:
        options.check_alone(ctx, "a campaign", but=GOES_WITH_RESUME)
    elif given["examples"] is not None and given["seconds"] is not None:
        raise click.UsageError("--examples and --time are both budgets: give one of them")
    if sanitize_seconds is not None:
        options.check_only(ctx, GOES_WITH_SANITIZE, "--sanitize chooses the cases itself: leave {} out")
        given |= {"seconds": sanitize_seconds, "sanitize": True, "jobs": 1}
    if len(given["backends"]) > MOST_BACKENDS:
        raise click.UsageError(f"{len(given['backends']):,} times --backend: give it {MOST_BACKENDS:,} times at most")
    print_line(details(), STARTING)
    if built:
        # Jobs and workers inherit it.
        os.environ["ATTNFUZZ_BUILT"] = "1"
    share_torch()
    from attnfuzz.harness.cli import campaign

    if resume:
        again = {name: given[name] for name in ("home", *sorted(GOES_WITH_RESUME))}
        return campaign.resume_campaign(**again)
    return campaign.start_campaign(**given)


@click.command()
@options.home_option("Folder of campaigns, findings and corpus.")
@click.option(
    "--campaign",
    metavar="ID|PATH",
    help="A campaign of --home, or the path of its folder or log.  [default: the last one]",
)
@click.option("--html", type=_FILE, help="Write a page that opens from disk.")
@click.option("--junit", type=_FILE, help="Write JUnit XML.")
@click.option("--markdown", type=_FILE, help="Write a summary for GitHub.")
@click.option(
    "--issue",
    "issues",
    type=(str, _FILE),
    multiple=True,
    metavar="FINDING FILE",
    help="Write the text of an issue on the cause of a finding; may be given several times.",
)
@options.answer_options("only the result")
def report(**given: Any) -> None:
    """Write the reports of a campaign next to its log.

    With --html, --junit, --markdown or --issue, only these are written, each to its file.

    A campaign that is still running, or was killed, is reported up to its last event.

    Exits with 0 even if there are findings, and with 2 if there is nothing to report.
    """
    from attnfuzz.harness.cli import report

    report.report(**given)


@click.command()
@click.argument("before", type=options.PathTo(), metavar="BEFORE")
@click.argument("after", type=options.PathTo(), metavar="AFTER")
@click.option("--markdown", type=_FILE, help="Write the comparison for GitHub.")
@options.answer_options("only the causes that appeared, were fixed or are still there")
def compare(**given: Any) -> None:
    """Print the differences between two campaigns.

    BEFORE and AFTER are homes (their last campaigns), folders of campaigns, or event logs. Exits with 0.
    """
    from attnfuzz.harness.cli import report

    report.compare_campaigns(**given)
