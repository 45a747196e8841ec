"""Failures as answers have them."""

from collections.abc import Iterable

from attnfuzz.harness.cli.answers import ListedFailure
from attnfuzz.harness.verdict.failures import Observation


def failure_of(seen: Observation) -> ListedFailure:
    """Return the failure that an observation is."""
    return ListedFailure(
        kind=seen.kind,
        place=seen.place,
        message=seen.message,
        step=seen.step,
        mode=seen.mode,
        kernel=seen.kernel,
        tier=seen.tier,
        margin=seen.margin,
    )


def failures_of(observations: Iterable[Observation]) -> tuple[ListedFailure, ...]:
    """Return the failures that observations are, in their order."""
    return tuple(map(failure_of, observations))
