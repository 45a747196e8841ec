"""What a worker is asked: a case, and how to judge it."""

import msgspec

from attnfuzz.harness.verdict.tiers import ALPHA, Tier
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A case to run, and how to judge it. `backend` is the one that runs it, whatever the case says.

    `trace` is a file that its calls are written to. `alpha` is the probability that a correct step is called wrong. The
    tiers in `without` are skipped. With `explain`, what is wrong is explained, which takes further runs.
    """

    case: Case | CallCase
    backend: str
    strict: bool = False
    alpha: float = ALPHA
    without: tuple[Tier, ...] = ()
    trace: str | None = None
    explain: bool = False
