"""Checking the types of values from a backend."""

from typing import TypeVar

T = TypeVar("T")


def checked(given: object, wanted: type[T], part: str) -> T:
    """Return a backend's value if it has the right type. Raises TypeError."""
    if not isinstance(given, wanted):
        raise TypeError(f"the backend's {part} is a {type(given).__name__}, not a {wanted.__name__}")
    return given
