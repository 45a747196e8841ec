"""The state of a finding."""

from enum import StrEnum


class State(StrEnum):
    """NEW: seen for the first time in this campaign. OPEN: seen before, and still fails. FIXED: passes now.

    RETURNED: it fails again after a campaign in which it passed.
    """

    NEW = "new"
    OPEN = "open"
    FIXED = "fixed"
    RETURNED = "returned"
