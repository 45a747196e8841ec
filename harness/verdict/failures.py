"""The ways in which a case can fail: one exception type per kind, raised in the parent.

Hypothesis distinguishes bugs by the type and the place of an exception, so a type per kind keeps it from sliding from
one bug into another while it shrinks, even if the failure killed a worker.
"""

from enum import StrEnum

import msgspec

from attnfuzz.reference.mistake import Mistake

REACHED_BY = "how a server reaches this step: "
"""Prefix of the line that explains how a server reaches the step."""

REACHED_BY_IN_0_1 = "a server gets there so: "
"""That prefix in the logs of attnfuzz 0.1."""


class Kind(StrEnum):
    """The ways in which a case can fail."""

    ILLEGAL_ACCESS = "IllegalAccess"
    MISALIGNED = "Misaligned"
    HANG = "Hang"
    WORKER_DIED = "WorkerDied"
    RAISED = "Raised"
    OUTPUT_MISMATCH = "OutputMismatch"
    LSE_MISMATCH = "LseMismatch"
    EMPTY_ROW = "EmptyRow"
    UNWRITTEN = "Unwritten"
    WRITE_MISMATCH = "WriteMismatch"
    STRAY_WRITE = "StrayWrite"
    NOT_FINITE = "NotFinite"
    CANARY_OVERWRITTEN = "CanaryOverwritten"
    INPUT_MUTATED = "InputMutated"
    PADDING_LEAK = "PaddingLeak"
    REPLAY_DIVERGED = "ReplayDiverged"
    NONDETERMINISTIC = "Nondeterministic"
    METAMORPHIC_MISMATCH = "MetamorphicMismatch"
    UNEXPECTED_REJECTION = "UnexpectedRejection"
    CONTRACT_BROKEN = "ContractBroken"
    RACE = "Race"
    BARRIER_MISUSED = "BarrierMisused"
    UNINITIALIZED_READ = "UninitializedRead"


FAULTS = frozenset({Kind.ILLEGAL_ACCESS, Kind.MISALIGNED})
"""Kinds whose place is chance: the tensor nearest to a wild access."""

DEATHS = FAULTS | {Kind.HANG, Kind.WORKER_DIED}
"""Kinds of failures that end the worker."""

DAMAGES = frozenset({Kind.CANARY_OVERWRITTEN, Kind.INPUT_MUTATED})
"""Kinds of failures of memory that no kernel may write."""


class RowAddress(msgspec.Struct, frozen=True):
    """A row of an output: the index of the request in its step, of the token in the request, and of the query head."""

    request: int
    token: int
    head: int


class Access(msgspec.Struct, frozen=True):
    """The access that ended a worker: "read", "write", or "access" if the processor does not say which.

    `offsets` has, for each tensor of the launch, the bytes from its first element to the address. `index` is the index
    along the largest axis of the likely tensor, of `size` entries; None if unknown.
    """

    kind: str
    offsets: dict[str, int]
    index: int | None = None
    size: int | None = None


class WrongRows(msgspec.Struct, frozen=True, kw_only=True):
    """A failing row, `worst` (token of the batch, query head), beside the expected one, and the errors around it.

    `seen` and `expected` are elements from `first` on, None if not finite; of an LSE, its only one in natural units.
    `errors` has the largest absolute error of each row: a list for each head from `head` on, over the tokens from
    `token` on.
    """

    worst: tuple[int, int]
    first: int
    expected: tuple[float | None, ...]
    seen: tuple[float | None, ...]
    token: int
    head: int
    errors: tuple[tuple[float, ...], ...]


class KeysRead(msgspec.Struct, frozen=True):
    """The keys of its request that a failing row must read, and the parts that it reads according to an explanation.

    Each is its first key and the one behind its last. A key in two parts counts twice. `page` is the column of its page
    table, and the page id in it, that does not hold its keys.
    """

    due: tuple[int, int]
    parts: tuple[tuple[int, int], ...]
    page: tuple[int, int] | None = None


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One failure of one step, as the worker (or, for a death, the parent) saw it.

    `place` is a tensor's name for a fault, or the wrong rows ("out", "lse", "padded rows", "empty rows"). `kernel` is
    the entry point launched last. `margin` is error over bound: above 1 fails; None if the check is exact. `step`
    is the index of the step, -1 if unknown; `call` that of the launch in the step, -1 if unknown. `gap` marks a
    failure of the strict contract alone. `access` is the stray access of a fault, `row` the wrong row of the
    message. `mistakes` are those that explain it, if known; `rows` are the numbers of a reported failure, `keys`
    those that an explanation is about. `related` is set if it occurred in the related run. `raised_at` is the
    innermost line of the backend's own code that an exception comes from (FILE:LINE).
    """

    kind: Kind
    place: str
    message: str
    step: int = -1
    mode: str = ""
    kernel: str = ""
    tier: str = ""
    margin: float | None = None
    gap: bool = False
    call: int = -1
    access: Access | None = None
    row: RowAddress | None = None
    mistakes: tuple[Mistake, ...] = ()
    related: bool = False
    rows: WrongRows | None = None
    keys: KeysRead | None = None
    raised_at: str = ""

    @property
    def exception(self) -> str:
        """The type and line of an exception that comes from the backend's own code; empty for all other failures."""
        return f"{self.place} at {self.raised_at}" if self.raised_at else ""


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """Records of a run: a digest of its plan, the executed `lines` by file, and whether a mutant was `made`.

    The plan is all that a backend hands to its kernels and returns: arguments of every launch, and results. Its `parts`
    are these in order, each with its own digest, if the task asked for them.
    """

    plan: str
    parts: tuple[tuple[str, str], ...] = ()
    lines: dict[str, tuple[int, ...]] = {}
    made: bool = True


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The result of judging a case. `margins` has the largest margin of each tier; `seconds` the time of each phase.

    `rows` counts the judged (token, head) rows, `unanswered` those without a right answer because their inputs are not
    finite: only their accesses were judged. `passed` are the failures in the case's `past` that occurred and were
    ignored, the first one first. `watched` is set if the task asked for it.
    """

    observations: tuple[Observation, ...] = ()
    passed: tuple[Observation, ...] = ()
    margins: dict[str, float] = {}
    seconds: dict[str, float] = {}
    rows: int = 0
    unanswered: int = 0
    unsupported: str | None = None
    watched: Watched | None = None

    @property
    def failures(self) -> tuple[Observation, ...]:
        """Failures of the declared contract, worst first."""
        return tuple(observation for observation in self.observations if not observation.gap)


class Failure(AssertionError):
    """A case failed, as described by `observation`. Raised as one of the subclasses in FAILURES."""

    def __init__(self, observation: Observation, text: str) -> None:
        super().__init__(text)
        self.observation = observation


FAILURES: dict[Kind, type[Failure]] = {
    kind: type(kind.value, (Failure,), {"__module__": __name__, "__doc__": f"A failure of kind {kind}."})
    for kind in Kind
}
