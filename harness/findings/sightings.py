"""The campaigns that ran a finding, and the state that follows from them."""

from collections.abc import Sequence

import msgspec

from attnfuzz.harness.findings.state import State


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One campaign's result for a finding, at `time` in seconds since the epoch, and its environment."""

    campaign: str
    time: float
    failed: bool
    environment: dict[str, str]


class Sighted:
    """A finding on file. `sightings` are in the order of campaigns, at most one each."""

    __slots__ = ()
    sightings: tuple[Sighting, ...]

    @property
    def state(self) -> State:
        """Its state in the last campaign that ran it."""
        return state_after(self.sightings)

    @property
    def first_seen(self) -> Sighting:
        """The first time that it failed."""
        return next(sighting for sighting in self.sightings if sighting.failed)

    @property
    def last_seen(self) -> Sighting:
        """The last time that it failed."""
        return next(sighting for sighting in reversed(self.sightings) if sighting.failed)


def state_after(sightings: Sequence[Sighting]) -> State:
    """Return the state of a finding in the last campaign of `sightings`, given those before it."""
    *before, last = sightings
    if not last.failed:
        return State.FIXED
    if not before:
        return State.NEW
    return State.OPEN if before[-1].failed else State.RETURNED


def with_sighting(sightings: Sequence[Sighting], sighting: Sighting) -> tuple[Sighting, ...]:
    """Add the present campaign's sighting. Those of one campaign are merged, and one failure is enough to fail.

    Of many equal sightings in a row on the same environment, only the first and the last are kept, so that a record can
    span years of nights.
    """
    others = [each for each in sightings if each.campaign != sighting.campaign]
    own = [each for each in sightings if each.campaign == sighting.campaign]
    latest = msgspec.structs.replace(sighting, failed=sighting.failed or any(each.failed for each in own))
    if len(others) > 1 and _same(others[-2], others[-1]) and _same(others[-1], latest):
        del others[-1]
    return (*others, latest)


def _same(a: Sighting, b: Sighting) -> bool:
    return (a.failed, a.environment) == (b.failed, b.environment)
