"""Workers that run `deadly_handlers`, shared by the tests of a module: a nursery takes a second to start."""

from collections.abc import Iterator

import pytest

from attnfuzz.harness.workers.supervisor import Workers


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers("deadly_handlers:obey", preload=["deadly_handlers:ready"]) as workers:
        yield workers


@pytest.fixture(scope="module")
def touching() -> Iterator[Workers]:
    with Workers("deadly_handlers:touch") as workers:
        yield workers
