"""Storing a plan in the first event of its log, and restoring it for `--resume`."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attnfuzz
from attnfuzz.harness.backends.registry import UnknownBackend, resolve
from attnfuzz.harness.campaign.capabilities import logged_capabilities
from attnfuzz.harness.campaign.events import AnyEvent, CampaignStarted
from attnfuzz.harness.campaign.home import Home, HomeError
from attnfuzz.harness.campaign.log import read_torn_log
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.family import family_with
from attnfuzz.harness.search.drawn_part import DrawnPart
from attnfuzz.harness.search.examples import drawn_capability
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.promises import unsaid_part


def opening(plan: Plan, *, campaign: str, jobs: int, environment: Mapping[str, str]) -> CampaignStarted:
    """Return the start event of the campaign of that name, now, on this many jobs."""
    known = dict(_capabilities(plan.backends, plan.part))
    return CampaignStarted(
        at=0.0,
        campaign=campaign,
        time=time.time(),
        attnfuzz=attnfuzz.__version__,
        environment=dict(environment),
        capabilities={name: each for name, each in known.items() if isinstance(each, Capability)},
        other_capabilities=dict(logged_capabilities(known)),
        left_out=dict(_left_out(plan.backends)) if plan.promised else {},
        jobs=jobs,
        until_finding=plan.until_finding,
        # The campaign may be resumed from another folder.
        ledger=None if plan.ledger is None else str(plan.ledger.absolute()),
        folder=str(Path.cwd()),
        **_settings(plan),
    )


def _left_out(backends: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the words for the calls that each backend's API does not mention, if there are some."""
    for name in backends:
        with contextlib.suppress(UnknownBackend):
            if words := unsaid_part(resolve(name).capability):
                yield name, words


def _capabilities(backends: Sequence[str], part: DrawnPart) -> Iterator[tuple[str, Any]]:
    """Yield the capability of each backend whose coverage is measured, except those that only the jobs know."""
    for name in backends:
        with contextlib.suppress(UnknownBackend):
            capability = drawn_capability(name, part)
            if family_with(capability).has_axes:
                yield name, capability


@dataclass(frozen=True)
class Past:
    """The events of a campaign so far. Its log still ends in `torn_bytes` of a half-written event."""

    campaign: str
    events: Sequence[AnyEvent]
    torn_bytes: int

    @property
    def finished(self) -> bool:
        """Whether it finished, and was not killed, interrupted or failed."""
        standing = Standing.of(self.events)
        return standing.finished is not None and not standing.finished.interrupted and standing.failure is None


def last_campaign(home: Home) -> Past:
    """Return the last campaign of `home`, which must have one. Changes nothing. Raises LogError or OSError."""
    campaign = home.ids()[-1]
    events, torn_bytes = read_torn_log(home.log(campaign))
    return Past(campaign, events, torn_bytes)


def plan_again(
    past: Past,
    home: Home,
    *,
    jobs: int | None,
    ray: str | None,
    ledger: Path | None,
    until_finding: bool = False,
    begun: float,
) -> Plan:
    """Return the plan of a campaign as it was started, with these `jobs` and `ledger` if given.

    It keeps `until_finding`. `begun` is the time of the new request. Raises HomeError if something that the campaign
    needs is missing.
    """
    started = past.events[0]
    assert isinstance(started, CampaignStarted)
    if started.sanitize:
        raise HomeError("the last campaign ran under compute-sanitizer, and can't be continued: start it again")
    _check_backends(started)
    return Plan(
        jobs=jobs or started.jobs,
        out=home.path,
        until_finding=until_finding or started.until_finding,
        ledger=ledger or _ledger(started.ledger),
        ray=ray,
        begun=begun,
        **_settings(started),
    )


def _settings(of: Plan | CampaignStarted) -> dict[str, Any]:
    """Return the settings that a log and a plan have in common."""
    names = "backends preset examples seconds seed contract alpha guard without trial sanitize promised"
    return {name: getattr(of, name) for name in f"{names} modes dtypes only never".split()}


def _check_backends(started: CampaignStarted) -> None:
    for name in started.backends:
        file = Path(name.rpartition(":")[0])
        if file.suffix == ".py" and not file.is_file():
            where = "" if started.folder is None or file.is_absolute() else f", or continue in {started.folder}"
            raise HomeError(f"{name}, which this campaign tests, is missing: restore {file}{where}")


def _ledger(logged: str | None) -> Path | None:
    """Return the ledger with which the campaign was started."""
    if logged is None:
        return None
    path = Path(logged)
    if not path.is_file():
        raise HomeError(f"the ledger {path} of this campaign is missing: restore it, or name another with --ledger")
    return path
