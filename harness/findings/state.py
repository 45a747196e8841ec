"""The states of findings."""

from enum import StrEnum


class State(StrEnum):
    """The state of a finding.

    NEW: seen for the first time in this campaign. OPEN: seen before, and still fails. FIXED: passes now. RETURNED:
    fails again after a campaign in which it passed.
    """

    NEW = "new"
    OPEN = "open"
    FIXED = "fixed"
    RETURNED = "returned"
