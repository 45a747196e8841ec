"""What tests of triage share: the cases that planted defects fail."""

from collections.abc import Callable
from pathlib import Path

import pytest

from attnfuzz.harness.defects.pins import load_pin
from attnfuzz.reference.any_case import AnyCase

PINS = Path(__file__).parents[2] / "defects"


@pytest.fixture(scope="session")
def pinned() -> Callable[[str], AnyCase]:
    """The smallest case that a planted defect fails."""

    def case_of(defect: str) -> AnyCase:
        pin = load_pin(PINS, defect)
        assert pin is not None
        return pin.case

    return case_of
