"""The first event of a campaign: all that there is to know of what it was asked for."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attnfuzz
from attnfuzz.harness.backends.registry import UnknownBackend, resolve
from attnfuzz.harness.campaign.events import CampaignStarted
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.corpus.database import without_password
from attnfuzz.reference.capability import Capability


def opening(plan: Plan, *, campaign: str, jobs: int, environment: Mapping[str, str]) -> CampaignStarted:
    """The event with which the campaign of that name starts, now, on so many jobs."""
    return CampaignStarted(
        at=0.0,
        campaign=campaign,
        time=time.time(),
        attnfuzz=attnfuzz.__version__,
        environment=dict(environment),
        backends=plan.backends,
        capabilities=dict(_capabilities(plan.backends)),
        preset=plan.preset,
        examples=plan.examples,
        seconds=plan.seconds,
        seed=plan.seed,
        jobs=jobs,
        contract=plan.contract,
        alpha=plan.alpha,
        guard=plan.guard,
        leaning=plan.leaning,
        # The campaign may be gone on with from another folder.
        database=None if plan.database is None else _absolute(without_password(plan.database)),
        ledger=None if plan.ledger is None else str(plan.ledger.absolute()),
        folder=str(Path.cwd()),
    )


def _absolute(database: str) -> str:
    return database if "://" in database else str(Path(database).absolute())


def _capabilities(backends: Sequence[str]) -> Iterator[tuple[str, Capability]]:
    """What each backend can; one that only the jobs know is left out."""
    for name in backends:
        with contextlib.suppress(UnknownBackend):
            yield name, resolve(name).capability
