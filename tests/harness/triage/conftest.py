"""What tests of triage share: workers with all the time that a loaded machine may need."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attnfuzz.harness.defects.pins import load_pin
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.reference.case_file import AnyCase

PINS = Path(__file__).parents[2] / "defects"


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def pinned() -> Callable[[str], AnyCase]:
    """The smallest case that a planted defect fails."""

    def case_of(defect: str) -> AnyCase:
        pin = load_pin(PINS, defect)
        assert pin is not None
        return pin.case

    return case_of
