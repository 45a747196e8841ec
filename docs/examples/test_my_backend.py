"""Fuzz the kernel with pytest. A failure is minimized, even if the case crashes its process."""

from pathlib import Path

from hypothesis import given, settings

from attnfuzz import cases, check

BACKEND = f"{Path(__file__).parent / 'my_backend.py'}:MINE"


@settings(max_examples=50)
@given(cases(BACKEND))
def test_every_batch(case) -> None:
    """Draw, run and judge batches."""
    check(case)
