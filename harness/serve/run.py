"""The way into a campaign against a server from Python: `run_against` a plan, or `resume_against` a home."""

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attnfuzz.harness.campaign.home import Home, HomeError
from attnfuzz.harness.serve.campaign import ServeCampaign, ServePlan, settings
from attnfuzz.harness.serve.client import Client, ServerError, token_from
from attnfuzz.harness.serve.events import AnyServeEvent, ServeFinished, ServeHandler, ServeStarted
from attnfuzz.harness.serve.launch import LaunchedServer
from attnfuzz.harness.serve.ledger import ServerLedger
from attnfuzz.harness.serve.log import ServeLog, ServeLogError, read_serve_log
from attnfuzz.harness.serve.reports import write_serve_reports
from attnfuzz.harness.serve.standing import ServeStanding
from attnfuzz.harness.serve.target import TestedServer

OUTPUT_OF_SERVER = "server.log"

_WORDS = re.compile(r"[\s=/'\"]+")


class Served(NamedTuple):
    """A campaign that ended: its name, where it stands, and the reports that were written."""

    campaign: str
    standing: ServeStanding
    reports: tuple[Path, ...]


class _Past(NamedTuple):
    campaign: str
    events: Sequence[AnyServeEvent] = ()
    torn_bytes: int = 0


def run_against(
    plan: ServePlan, handlers: Sequence[ServeHandler] = (), *, stop: threading.Event | None = None
) -> Served:
    """Run `plan` as a new campaign of its home. `stop` ends it early. Raises UserError and OSError."""
    client, ledger = _checked(plan)
    home = Home(plan.out)
    _refuse_other_homes(home)
    with home.locked():
        return _carry_out(plan, client, ledger, home, _Past(home.new_id()), handlers, stop or threading.Event())


def resume_against(out: Path, handlers: Sequence[ServeHandler] = (), *, stop: threading.Event | None = None) -> Served:
    """Continue the last campaign of a home with its own plan; write the reports of a finished one again."""
    home = Home(out)
    names = home.ids()
    if not names:
        raise HomeError(f"{out} has no campaign to continue: name the --home of one")
    with home.locked():
        events, torn_bytes = read_serve_log(home.log(names[-1]))
        if isinstance(events[-1], ServeFinished) and not events[-1].interrupted and not events[-1].ended:
            standing = ServeStanding.of(events)
            return Served(names[-1], standing, write_serve_reports(home.folder(names[-1]), standing))
        plan = _plan_again(events[0], out)
        client, ledger = _checked(plan)
        past = _Past(names[-1], events, torn_bytes)
        return _carry_out(plan, client, ledger, home, past, handlers, stop or threading.Event())


def _checked(plan: ServePlan) -> tuple[Client, ServerLedger]:
    token = token_from(plan.token_env)
    client = Client.of(plan.url, token)
    if token is not None and token in _WORDS.split(f"{plan.url} {plan.start or ''}"):
        raise ServerError(
            "--start or the URL has the token, which would be logged: let the server read its variable, like "
            "--start \"sh -c 'exec SERVER --api-key $NAME'\""
        )
    return client, ServerLedger() if plan.ledger is None else ServerLedger.load(plan.ledger)


def _refuse_other_homes(home: Home) -> None:
    """Refuse a home of `attnfuzz fuzz`: it has cases in its findings, which no server is asked."""
    for name in home.ids()[-1:]:
        try:
            read_serve_log(home.log(name))
        except ServeLogError as error:
            raise ServerError(f"{home.path} is not a home of attnfuzz serve ({error})") from None


def _plan_again(started: AnyServeEvent, out: Path) -> ServePlan:
    assert isinstance(started, ServeStarted)
    ledger = None if started.ledger is None else Path(started.ledger)
    return ServePlan(out=out, ledger=ledger, **settings(started))


def _carry_out(
    plan: ServePlan,
    client: Client,
    ledger: ServerLedger,
    home: Home,
    past: _Past,
    handlers: Sequence[ServeHandler],
    stop: threading.Event,
) -> Served:
    folder = home.folder(past.campaign)
    launched = None
    if plan.start is not None:
        launched = LaunchedServer(plan.start, client, folder / OUTPUT_OF_SERVER, ready=plan.ready)
    mine = plan.mine or launched is not None
    server = TestedServer(
        client=client, mine=mine, concurrency=plan.concurrency, timeout=plan.timeout, launched=launched
    )
    with ServeLog(home.log(past.campaign), torn_bytes=past.torn_bytes) as log:
        campaign = ServeCampaign(
            plan=plan,
            server=server,
            home=home,
            name=past.campaign,
            ledger=ledger,
            handlers=(log, *handlers),
            stop=stop,
            past=past.events,
        )
        standing = campaign.run()
    return Served(past.campaign, standing, write_serve_reports(folder, standing))
