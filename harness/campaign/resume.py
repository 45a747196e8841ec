"""A plan as the first event of its log, and the plan of `--resume` from it."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import attnfuzz
from attnfuzz.harness.backends.registry import UnknownBackend, resolve
from attnfuzz.harness.campaign.events import AnyEvent, CampaignStarted
from attnfuzz.harness.campaign.home import Home, HomeError
from attnfuzz.harness.campaign.log import read_torn_log
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.corpus.database import without_password
from attnfuzz.reference.capability import Capability


def opening(plan: Plan, *, campaign: str, jobs: int, environment: Mapping[str, str]) -> CampaignStarted:
    """The start event of the campaign of that name, now, on this many jobs."""
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
        until_finding=plan.until_finding,
        without=plan.without,
        trial=plan.trial,
        # The campaign may be resumed from another folder.
        database=None if plan.database is None else _absolute(without_password(plan.database)),
        ledger=None if plan.ledger is None else str(plan.ledger.absolute()),
        folder=str(Path.cwd()),
    )


def _absolute(database: str) -> str:
    return database if "://" in database else str(Path(database).absolute())


def _capabilities(backends: Sequence[str]) -> Iterator[tuple[str, Capability]]:
    """Each backend's capability, without those that only the jobs know."""
    for name in backends:
        with contextlib.suppress(UnknownBackend):
            yield name, resolve(name).capability


@dataclass(frozen=True)
class Past:
    """The events of a campaign so far. Its log still ends in `torn_bytes` of a half-written event."""

    campaign: str
    events: Sequence[AnyEvent]
    torn_bytes: int

    @property
    def finished(self) -> bool:
        """Whether it finished: not killed, interrupted or failed."""
        standing = Standing.of(self.events)
        return standing.finished is not None and not standing.finished.interrupted and standing.failure is None


def last_campaign(home: Home) -> Past:
    """The last campaign of `home`, which must have one. Changes nothing. Raises LogError or OSError."""
    campaign = home.ids()[-1]
    events, torn_bytes = read_torn_log(home.log(campaign))
    return Past(campaign, events, torn_bytes)


def plan_again(
    past: Past,
    home: Home,
    *,
    jobs: int | None,
    ray: str | None,
    database: str | None,
    ledger: Path | None,
    until_finding: bool = False,
    begun: float,
) -> Plan:
    """Return the plan of a campaign as it was begun, with these `jobs`, `database` and `ledger` if given.

    It keeps `until_finding`. `begun` is the time of the new request. A log has no passwords, so a database with one has
    to be given again. Raises HomeError if something that the campaign needs is missing.
    """
    started = past.events[0]
    assert isinstance(started, CampaignStarted)
    _check_backends(started)
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
        until_finding=until_finding or started.until_finding,
        without=started.without,
        trial=started.trial,
        database=database or _database(started.database, home),
        ledger=ledger or _ledger(started.ledger, home),
        ray=ray,
        begun=begun,
    )


def _check_backends(started: CampaignStarted) -> None:
    for name in started.backends:
        file = Path(name.rpartition(":")[0])
        if file.suffix == ".py" and not file.is_file():
            where = "" if started.folder is None or file.is_absolute() else f", go on in {started.folder}"
            raise HomeError(f"{name}, which this campaign tests, is not here: bring {file} back{where}")


def _ledger(logged: str | None, home: Home) -> Path | None:
    """The ledger of the campaign's begin."""
    if logged is None:
        return None
    # Old logs have relative paths, mostly from the folder in which the home was made.
    for path in (home.path.absolute().parent / logged, Path(logged)):
        if path.is_file():
            return path
    raise HomeError(f"the ledger {logged} of this campaign is gone: bring it back, or name it with --ledger")


def _database(logged: str | None, home: Home) -> str | None:
    if logged is None or "://" in logged:
        return logged
    beside = home.path.absolute().parent / logged
    return str(beside) if beside.is_dir() else logged
