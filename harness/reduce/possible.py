"""Checking whether an edited case can exist."""

from attnfuzz.reference.case_file import AnyCase, validate_any
from attnfuzz.reference.validity import ImpossibleCase


def possible(case: AnyCase) -> bool:
    """Return whether a case can exist."""
    try:
        validate_any(case)
    except ImpossibleCase:
        return False
    return True
