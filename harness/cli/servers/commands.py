"""`attnfuzz serve`: a running server under traces of requests."""

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from attnfuzz.harness.campaign.plan import MOST_EXAMPLES
from attnfuzz.harness.cli import options
from attnfuzz.harness.cli.terminal import Exit

MOST_CONCURRENT = 1024

DEFAULT_SECONDS = 600.0


def _difference(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise click.BadParameter(f"{text!r} is not a number from 0 to 100")
    return value


@click.command()
@click.argument("url", required=False)
@click.option(
    "--start",
    metavar="COMMAND",
    help="Command that starts the server; it is run without a shell, restarted after a crash, and ended with all its "
    "processes. Implies --mine.",
)
@click.option(
    "--mine",
    is_flag=True,
    help="No one else uses the server, so its cache may be flushed, requests aborted, and the server crashed.",
)
@click.option(
    "--time", "seconds", type=options.duration, help="Time to search, like 90s, 10m or 1h30m.  [default: 10m]"
)
@click.option("--traces", type=options.counted(most=MOST_EXAMPLES), help="Traces to run, instead of a time.")
@options.seed_option()
@click.option(
    "--concurrency",
    type=options.counted(most=MOST_CONCURRENT),
    default=16,
    show_default=True,
    help="Maximum number of concurrent requests.",
)
@click.option(
    "--token-env", metavar="NAME", help="Environment variable with the server's token, which is never logged."
)
@click.option(
    "--timeout", type=options.duration, default="60s", show_default=True, help="A request that takes longer is a hang."
)
@click.option("--ready", type=options.duration, default="10m", show_default=True, help="Time for --start to be ready.")
@click.option(
    "--floor",
    type=_difference,
    metavar="DIFFERENCE",
    help="Largest difference of log-probabilities that is allowed.  [default: measured first]",
)
@click.option(
    "--until-finding",
    is_flag=True,
    help="Stop once the first failure that is not in the ledger has been minimized and filed.",
)
@options.home_option("Folder of campaigns and findings; keep it from night to night.", default=Path("attnfuzz-serve"))
@click.option(
    "--ledger",
    type=options.PathTo(exists=True, dir_okay=False),
    help="File of known findings, with [[server]] tables.  [default: attnfuzz-ledger.toml, if it exists]",
)
@click.option("--resume", is_flag=True, help="Continue the last campaign of --home with its own options.")
@options.answer_options("only the result")
@click.pass_context
def serve(ctx: click.Context, /, *, resume: bool, url: str | None, **given: Any) -> Exit:
    """Test the LLM server that runs at URL.

    Sends traces of requests, and compares each answer with that of the same request alone after a flush. Supports
    SGLang's own API, and OpenAI's completions API as served by vLLM, SGLang and TensorRT-LLM.

    Exits with 0 if nothing fails except known findings, 1 if anything else does, 2 if the server can't be tested, 130
    after Ctrl-C or SIGTERM.
    """
    if resume:
        options.check_alone(ctx, "a campaign")
    elif url is None:
        raise click.UsageError("give the URL of a server, like http://127.0.0.1:8000")
    elif given["start"] is None and ctx.get_parameter_source("ready") is not ParameterSource.DEFAULT:
        raise click.UsageError("--ready is the time for --start: give that too, or leave --ready out")
    elif given["traces"] is not None and given["seconds"] is not None:
        raise click.UsageError("--traces and --time are both budgets: give one of them")
    from attnfuzz.harness.cli.servers import serve

    if resume:
        return serve.resume_serving(given["home"])
    if given["traces"] is None and given["seconds"] is None:
        given["seconds"] = DEFAULT_SECONDS
    return serve.start_serving(url=url, **given)
