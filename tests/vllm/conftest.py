"""Releases of vLLM are downloaded once, into the cache that campaigns use too."""

from collections.abc import Iterator

import pytest

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.vllm.engine import ENGINE


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    """What releases import must be there: a skipped test would look like one that passed."""
    missing = ENGINE.resolve("vllm==0.33.0:flashinfer").missing()
    if missing is not None:
        pytest.exit(f"tests of vLLM's releases: {missing}, or make test-vllm", returncode=2)


@pytest.fixture
def runner() -> Iterator[Runner]:
    """Judges cases; each release that it meets gets workers of its own, which go with the test."""
    with Runner() as running:
        yield running
