"""What tests of the harness share: workers, and cases for the backends in tests/fakes/defective_backend.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from attnfuzz.harness.check import Runner


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def defective() -> str:
    """The file of backends with defects; name one after a colon."""
    return f"{Path(__file__).parents[1] / 'fakes' / 'defective_backend.py'}"
