"""What a worker is asked: a case, and the tiers of the judge, by the names that observations and margins carry."""

from enum import StrEnum
from typing import Final

import msgspec

from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Case


class Tier(StrEnum):
    """What a check is made of.

    T0 holds exactly. T1 bounds each element, T2 the mean square error of a row, T3 what all rows have in common, T4
    the log-sum-exp. T5 bounds rows whose weights are exact by roundings alone. T6 compares with a related run.
    """

    T0 = "T0"
    T1 = "T1"
    T2 = "T2"
    T3 = "T3"
    T4 = "T4"
    T5 = "T5"
    T6 = "T6"


ALPHA = 1e-9
"""The probability that a correct kernel's output is called wrong, by all tiers together."""

ALL_TIERS: Final = frozenset(Tier)


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
