"""Messages between a campaign's main process and its jobs: JSON lines."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.search.drawn_part import EVERYTHING, DrawnPart
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.limits import MOST_SECONDS
from attnfuzz.harness.verdict.blame import Blamed
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.harness.verdict.tiers import ALPHA, Tier
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Guard
from attnfuzz.strategies.coverage import Pair
from attnfuzz.strategies.lean import Lean

# Bounds on values in a log, which may be damaged or hostile.
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]


NOT_COME_BACK = "it did not fail again in a fresh worker"
FAILS_ALONE = "its related run also fails on its own, which is a different failure"


class JobSetup(msgspec.Struct, frozen=True, kw_only=True):
    """First message to a job: the settings of all its slices.

    `alpha` is the probability that a correct output is judged wrong. The tiers in `without` are skipped. `job` is the
    job's number, which determines its GPU. `path` is the main process's module search path, which lets a job on the
    same machine find the same backends; if it is empty, the job keeps its own path. Failures that match entries of the
    `ledger` hide no others. Only this `part` of the backends' cases is drawn.
    """

    backends: tuple[str, ...]
    contract: str
    guard: Guard | None
    alpha: float = ALPHA
    without: tuple[Tier, ...] = ()
    job: int = 0
    path: tuple[str, ...] = ()
    ledger: tuple[Entry, ...] = ()
    part: DrawnPart = EVERYTHING


class ShrinkBudget(msgspec.Struct, frozen=True):
    """The budget for shrinking one failure, in runs of a case and in seconds."""

    runs: int = 1000
    seconds: float = 40.0


class SliceKind(StrEnum):
    """The task of a slice: drawn cases, kept cases, unsettled suspects, causes to compare or to minimize, a script."""

    DRAWN = "drawn"
    KEPT = "kept"
    ONCE_MORE = "once more"
    COMPARED = "compared"
    MINIMIZED = "minimized"
    SCRIPTED = "scripted"


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A kept case to run again. `finding` is the name of its finding, if any.

    `failed` are the earlier failures of the case of a finding or of suspects. A flaky finding has its `recurrence` and
    `history`.
    """

    case: AnyCase
    finding: str | None = None
    failed: tuple[Observation, ...] = ()
    recurrence: Recurrence | None = None
    history: tuple[AnyCase, ...] = ()


class CausePair(msgspec.Struct, frozen=True, kw_only=True):
    """Two causes that may be one: `cause` explains `other`, or vice versa."""

    cause: KnownCause
    other: KnownCause


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """To a job: search `backend` for failures that are not `known`, within a number of examples or seconds.

    Cases that fail as `held` are left to the jobs that are settling these failures. `causes` are those of known
    failures in this backend or in one that shares a kernel with it. `index` numbers the drawing slices of a backend.
    With `replays`, judge these cases in order and draw none. With a `comparison`, do only that; with a cause to be
    `minimized`, shrink its case again, and settle other failures that occur; with one `scripted`, make its script. A
    slice for scripts also waits for those that its job makes already. `lean` biases drawing. With `first_only`, other
    failures during shrinking are ignored, and no scripts are made. Nothing is shrunk after `shrink_seconds`. These and
    `seconds` count from `handed_at`, a time of this machine's monotonic clock, or from the beginning of the slice if
    that is not given.
    """

    backend: str
    kind: SliceKind = SliceKind.DRAWN
    index: int | None = None
    seed: int
    examples: int
    known: tuple[Fingerprint, ...] = ()
    held: tuple[Fingerprint, ...] = ()
    causes: tuple[KnownCause, ...] = ()
    seconds: float | None = None
    shrink: ShrinkBudget = ShrinkBudget()
    first_only: bool = False
    replays: tuple[Replay, ...] = ()
    comparison: CausePair | None = None
    minimized: KnownCause | None = None
    scripted: "Caught | None" = None
    lean: Lean = Lean()
    shrink_seconds: float | None = None
    handed_at: float | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A message from a job to the main process."""


class DtypeMargins(msgspec.Struct, frozen=True):
    """The judged `rows` of cases that passed, and the largest margin of each tier among them."""

    rows: Count = 0
    margins: dict[str, float] = {}

    def __add__(self, later: "DtypeMargins") -> "DtypeMargins":
        """Return both in one."""
        return DtypeMargins(self.rows + later.rows, _largest(self.margins, later.margins))


def _largest(margins: dict[str, float], others: dict[str, float]) -> dict[str, float]:
    return {tier: max(margins.get(tier, 0.0), others.get(tier, 0.0)) for tier in margins | others}


class Recognized(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of failures that an entry of the ledger, or a known cause, may account for. They can be added.

    `passed` of them did not occur without a feature that it needs, and `beneath` of them did. `refused` are those for
    which there is no such case, or the backend does not support it. Others were settled in full: the entry matches the
    smallest case of `agreed`, and not that of `elsewhere`.
    """

    passed: Count = 0
    beneath: Count = 0
    refused: Count = 0
    agreed: Count = 0
    elsewhere: Count = 0

    def __add__(self, other: "Recognized") -> "Recognized":
        """Return the sum of both."""
        return Recognized(
            passed=self.passed + other.passed,
            beneath=self.beneath + other.beneath,
            refused=self.refused + other.refused,
            agreed=self.agreed + other.agreed,
            elsewhere=self.elsewhere + other.elsewhere,
        )


class Tally(Message, frozen=True, kw_only=True, tag=True):
    """Counts of runs since the last message, in a slice, or on a backend. Tallies can be added.

    `searched` cases were drawn and judged, `unsupported` ones drawn and not judged. `cases` counts all runs that were
    judged, including those to shrink and confirm, with `rows` rows; `deaths` of them killed their worker. `shrinking`
    is set if the most recent ones belonged to suspects. `margins` has the largest margin of each tier among cases that
    passed, `dtypes` the same for each dtype of queries, and `phases` the seconds spent in each phase of the judged
    cases. `recognized` has, under the number of each entry of the ledger, from 1, the failures of which it is the first
    possible reason, and under 0 those of known causes alone.
    """

    searched: Count = 0
    unsupported: Count = 0
    cases: Count = 0
    deaths: Count = 0
    rows: Count = 0
    shrinking: bool = False
    margins: dict[str, float] = {}
    dtypes: dict[str, DtypeMargins] = {}
    phases: dict[str, Seconds] = {}
    recognized: dict[Count, Recognized] = {}

    def __add__(self, later: "Tally") -> "Tally":
        """Return the sum of both."""
        dtypes, phases = self.dtypes | later.dtypes, self.phases | later.phases
        none = DtypeMargins()
        recognized = dict(self.recognized)
        for entry, counts in later.recognized.items():
            recognized[entry] = recognized.get(entry, Recognized()) + counts
        return Tally(
            searched=self.searched + later.searched,
            unsupported=self.unsupported + later.unsupported,
            cases=self.cases + later.cases,
            deaths=self.deaths + later.deaths,
            rows=self.rows + later.rows,
            shrinking=later.shrinking,
            margins=_largest(self.margins, later.margins),
            dtypes={dtype: self.dtypes.get(dtype, none) + later.dtypes.get(dtype, none) for dtype in dtypes},
            phases={phase: self.phases.get(phase, 0.0) + later.phases.get(phase, 0.0) for phase in phases},
            recognized=recognized,
        )


class Interesting(Message, frozen=True, kw_only=True, tag=True):
    """A case with new features or record margins for this job, passed or failed.

    `pairs` of features are new to the job; `margins` of tiers exceed all earlier ones by at least a tenth.
    """

    case: AnyCase
    pairs: tuple[Pair, ...] = ()
    margins: dict[str, float] = {}


class Rechecked(Message, frozen=True, kw_only=True, tag=True):
    """The result of running a finding's case again: its failures now, worst first; empty if it passes.

    The case ran until it failed, with fresh value seeds too: `runs` times in total. `unsupported` is the reason if it
    could not run. A flaky case is `inconclusive` if there was no time for enough runs.
    """

    finding: str
    observations: tuple[Observation, ...]
    runs: int
    unsupported: str | None = None
    inconclusive: bool = False


class MaySettle(Message, frozen=True, kw_only=True, tag=True):
    """Asks whether the job may settle a failure. The answer is an order: true unless another job is settling it."""

    fingerprint: Fingerprint


class Suspect(Message, frozen=True, kw_only=True, tag=True):
    """A new kind of failure, as drawn. A `left_over` suspect waits for another slice because the time is up.

    It is `beside` known failures with its fingerprint if their causes are not possible in its case.
    """

    fingerprint: Fingerprint
    case: AnyCase
    observation: Observation
    left_over: bool = False
    beside: bool = False


class Caught(Message, frozen=True, kw_only=True, tag=True):
    """The suspect with this fingerprint came back in a fresh worker; `case` is the smallest that fails like it.

    `needs` are the names of the features that the failure of `case` needs; if it is not `ablated`, there was no time to
    find all of them. `cause` names the finding whose cause explains it, "" if unknown. `beside` is as in `Suspect`. A
    flaky failure has a `recurrence`; `history` are the cases to run before it. A death may have occurred only once.
    Where a `script_follows`, HandedOver comes once it has run, maybe during a later slice.
    """

    fingerprint: Fingerprint
    first: AnyCase
    case: AnyCase
    observation: Observation
    verdict: Verdict
    needs: tuple[str, ...] = ()
    ablated: bool = True
    cause: str = ""
    beside: bool = False
    recurrence: Recurrence | None = None
    history: tuple[AnyCase, ...] = ()
    script_follows: bool = False


class HandedOver(Message, frozen=True, kw_only=True, tag=True):
    """For the failure with this fingerprint and case: a script that shows it without attnfuzz, and whose fault it is.

    `script` is None if there is none to keep. `obstacle` is the reason for that, or why the script is not known to show
    the failure; "" if it showed it. `blame` is None if the cause was known before, or there was no time.
    """

    fingerprint: Fingerprint
    case: AnyCase
    script: str | None
    obstacle: str = ""
    blame: Blamed | None = None


class Lost(Message, frozen=True, kw_only=True, tag=True):
    """Reports that the suspect with this fingerprint is no finding, and the `reason`. `tried` describes its reruns."""

    fingerprint: Fingerprint
    tried: Recurrence | None = None
    reason: str = NOT_COME_BACK


class SameCauses(Message, frozen=True, kw_only=True, tag=True):
    """Reports that the cause of the finding `cause` explains the finding `name`."""

    name: str
    cause: str


class Gap(Message, frozen=True, kw_only=True, tag=True):
    """A failure only of the strict contract."""

    fingerprint: Fingerprint
    case: AnyCase
    observation: Observation


class SliceDone(Message, frozen=True, kw_only=True, tag=True):
    """The slice is over. `tally` is the sum of the tallies it sent, `replayed` the number of replays that it ran."""

    tally: Tally
    replayed: int = 0
    stopped_early: bool
    seconds: float
    unsupported: dict[str, int]


class Ready(Message, frozen=True, kw_only=True, tag=True):
    """The job has a worker for its first case."""


class DriverAwaited(Message, frozen=True, kw_only=True, tag=True):
    """The job has waited `seconds` for the GPU's driver, which may not answer any more. `last` is as in Unable."""

    seconds: Seconds
    last: AnyCase | None = None


class Unable(Message, frozen=True, kw_only=True, tag=True):
    """The job ends, for a reason outside of the harness: `text` is one line for the user.

    `last` is the case that ran last on a GPU that does not answer any more.
    """

    text: str
    last: AnyCase | None = None


AnyMessage = (
    Tally
    | Interesting
    | Rechecked
    | MaySettle
    | Suspect
    | Caught
    | HandedOver
    | Lost
    | SameCauses
    | Gap
    | SliceDone
    | Ready
    | DriverAwaited
    | Unable
)
