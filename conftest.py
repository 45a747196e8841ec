"""What all tests share."""

from collections.abc import Iterator

import pytest

from attnfuzz.harness.search.constants import without_constants_of_sources

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session", autouse=True)
def _seeds_draw_the_same() -> Iterator[None]:
    """Which modules are loaded depends on the tests that ran before, and on how they are shared out among processes."""
    with without_constants_of_sources():
        yield
