"""What the main process of a campaign and its jobs say to each other: JSON, one message per line."""

import msgspec

from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.tiers import ALPHA, Tier
from attnfuzz.reference.case import Case, Guard
from attnfuzz.strategies.coverage import Pair
from attnfuzz.strategies.lean import Lean


class JobSetup(msgspec.Struct, frozen=True, kw_only=True):
    """To a job, first: what all of its slices share.

    `alpha` is the probability that a correct output is called wrong. The tiers in `without` are not heard. `database`
    is a folder or a redis:// URL for Hypothesis' examples. `job` is the job's number, by which it takes its GPU.
    """

    backends: tuple[str, ...]
    contract: str
    guard: Guard | None
    alpha: float = ALPHA
    without: tuple[Tier, ...] = ()
    database: str | None = None
    job: int = 0


class ShrinkBudget(msgspec.Struct, frozen=True):
    """What shrinking one failure may cost: runs of a case, and seconds."""

    runs: int = 1000
    seconds: float = 20.0


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A kept case to run again. `finding` names the finding that it is the case of, if it is one's."""

    case: Case
    finding: str | None = None


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """To a job: search `backend` for failures that are not `known`, for so many examples or seconds.

    With `replays`, judge these cases in this order and draw none. `lean` is what is drawn more often than otherwise.
    With `first_only`, what else turns up while the first failure is shrunk is ignored. Nothing is shrunk after
    `shrink_seconds`. These and `seconds` count from `handed_at`, a time of this machine's monotonic clock, or from when
    the slice begins if that is not given.
    """

    backend: str
    index: int
    seed: int
    examples: int
    known: tuple[Fingerprint, ...] = ()
    seconds: float | None = None
    shrink: ShrinkBudget = ShrinkBudget()
    first_only: bool = False
    replays: tuple[Replay, ...] = ()
    lean: Lean = Lean()
    shrink_seconds: float | None = None
    handed_at: float | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """From a job to the main process."""


class Tally(Message, frozen=True, kw_only=True, tag=True):
    """What happened since the last tally; the fields are those of `events.Progress`."""

    searched: int = 0
    cases: int
    deaths: int
    shrinking: bool
    rows: int = 0
    margins: dict[str, float] = {}
    phases: dict[str, float] = {}


class Interesting(Message, frozen=True, kw_only=True, tag=True):
    """A case that passed or failed, and did what no other case of this job did before it.

    `pairs` of features are new to the job; `margins` of tiers are larger than any before by a tenth at least.
    """

    case: Case
    pairs: tuple[Pair, ...] = ()
    margins: dict[str, float] = {}


class Rechecked(Message, frozen=True, kw_only=True, tag=True):
    """A finding's case was run again: how it fails now, worst first; not at all, if there is no observation.

    It was run until it failed, with fresh value seeds too: `runs` times in all. `unsupported` is why it could not be.
    """

    finding: str
    observations: tuple[Observation, ...]
    runs: int
    unsupported: str | None = None


class Suspect(Message, frozen=True, kw_only=True, tag=True):
    """A new kind of failure, as it was drawn. One that is `left_over` waits for another slice: this one has no time."""

    fingerprint: Fingerprint
    case: Case
    observation: Observation
    left_over: bool = False


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


class Troubled(Message, frozen=True, kw_only=True, tag=True):
    """Something around the job broke, and it goes on without it."""

    text: str


class SliceDone(Message, frozen=True, kw_only=True, tag=True):
    """The slice is over. `searched` counts the examples, `cases` all runs, shrinking included.

    `replayed` are the cases that it came to, of those that it was to run again.
    """

    searched: int
    replayed: int = 0
    stopped_early: bool
    cases: int
    deaths: int
    seconds: float
    unsupported: dict[str, int]


AnyMessage = Tally | Interesting | Rechecked | Suspect | Caught | Lost | Gap | Troubled | SliceDone
