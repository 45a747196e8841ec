"""The tiers of the judge, by the names that observations and margins carry."""

from enum import StrEnum
from typing import Final


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
