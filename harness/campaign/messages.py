"""What the main process of a campaign and its jobs say to each other: JSON, one message per line."""

import msgspec

from attnfuzz.harness.failures import Observation, Verdict
from attnfuzz.harness.fingerprint import Fingerprint
from attnfuzz.harness.judge import ALPHA, Tier
from attnfuzz.reference.case import Case, Guard


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """To a job, first: what all of its slices share.

    `alpha` is the probability that a correct output is called wrong. The tiers in `without` are not heard.
    """

    backends: tuple[str, ...]
    contract: str
    guard: Guard | None
    alpha: float = ALPHA
    without: tuple[Tier, ...] = ()


class ShrinkBudget(msgspec.Struct, frozen=True):
    """What shrinking one failure may cost in Hypothesis, and once more in the reducer: runs of a case, and seconds."""

    runs: int = 1000
    seconds: float = 20.0


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """To a job: search `backend` for failures that are not `known`, for so many examples or seconds.

    With `first_only`, what else turns up while the first failure is shrunk is let go.
    """

    backend: str
    index: int
    seed: int
    examples: int
    known: tuple[Fingerprint, ...] = ()
    seconds: float | None = None
    shrink: ShrinkBudget = ShrinkBudget()
    first_only: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From a job to the main process."""


class Tally(Message, frozen=True, kw_only=True, tag=True):
    """So many cases since the last tally, so many of which killed a worker."""

    cases: int
    deaths: int
    shrinking: bool


class Suspect(Message, frozen=True, kw_only=True, tag=True):
    """A new kind of failure, as it was drawn."""

    fingerprint: Fingerprint
    case: Case
    observation: Observation


class Caught(Message, frozen=True, kw_only=True, tag=True):
    """The suspect with this fingerprint came back in a fresh worker; `case` is the smallest that fails like it."""

    fingerprint: Fingerprint
    first: Case
    case: Case
    observation: Observation
    verdict: Verdict


class Lost(Message, frozen=True, kw_only=True, tag=True):
    """The suspect with this fingerprint did not come back in a fresh worker."""

    fingerprint: Fingerprint


class Gap(Message, frozen=True, kw_only=True, tag=True):
    """Something that only the strict contract forbids."""

    fingerprint: Fingerprint
    case: Case
    observation: Observation


class SliceDone(Message, frozen=True, kw_only=True, tag=True):
    """The slice is over. `searched` counts the examples, `cases` all runs, shrinking included."""

    searched: int
    stopped_early: bool
    cases: int
    deaths: int
    seconds: float
    unsupported: dict[str, int]


AnyMessage = Tally | Suspect | Caught | Lost | Gap | SliceDone
