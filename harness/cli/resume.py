"""Which campaign `--resume` goes on with, and what was asked of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnfuzz.harness.campaign.events import AnyEvent, CampaignStarted
from attnfuzz.harness.campaign.home import Home, HomeError
from attnfuzz.harness.campaign.log import mend_log
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.standing import Standing


@dataclass(frozen=True)
class Past:
    """What a campaign has told so far. `torn_bytes` of a half-written event were cut off its log."""

    campaign: str
    events: Sequence[AnyEvent]
    torn_bytes: int


def unfinished(home: Home) -> Past:
    """The last campaign of `home`, which must be locked and have one: killed, interrupted, or failed.

    Raises HomeError if it is finished, LogError or OSError if its log can't be read.
    """
    campaign = home.ids()[-1]
    events, torn_bytes = mend_log(home.log(campaign))
    standing = Standing.of(events)
    if standing.finished and not standing.finished.interrupted and standing.failure is None:
        raise HomeError(f"campaign {campaign}, the last in {home.path}, is finished: begin another without --resume")
    return Past(campaign, events, torn_bytes)


def plan_again(past: Past, home: Home, *, jobs: int | None, ray: str | None, database: str | None) -> Plan:
    """What was asked of the campaign when it was begun, now with so many `jobs` and this `database`, if they are given.

    A log has no passwords, so a database that wants one has to be given again.
    """
    started = past.events[0]
    assert isinstance(started, CampaignStarted)
    return Plan(
        backends=started.backends,
        examples=started.examples,
        seconds=started.seconds,
        seed=started.seed,
        jobs=jobs or started.jobs,
        contract=started.contract,
        guard=started.guard,
        out=home.path,
        alpha=started.alpha,
        preset=started.preset,
        leaning=started.leaning,
        database=database or started.database,
        ledger=None if started.ledger is None else Path(started.ledger),
        ray=ray,
    )
