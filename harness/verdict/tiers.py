"""The judge's tiers, by their names in observations and margins."""

from enum import StrEnum
from typing import Final


class Tier(StrEnum):
    """The judge's tiers.

    T0 holds exactly. T1 bounds each element, T2 the mean square error of a row, T3 the error common to all rows, T4 the
    log-sum-exp. T5 bounds rows with exact weights by roundings alone. T6 compares with a related run.
    """

    T0 = "T0"
    T1 = "T1"
    T2 = "T2"
    T3 = "T3"
    T4 = "T4"
    T5 = "T5"
    T6 = "T6"


ALPHA = 1e-9
"""Probability that a correct kernel's output fails, over all tiers."""

ALL_TIERS: Final = frozenset(Tier)
