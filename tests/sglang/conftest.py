"""Releases of SGLang are downloaded once, into the cache that campaigns use too."""

from collections.abc import Iterator

import pytest

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.sglang.engine import ENGINE
from attnfuzz.kernels.sglang.project import SGLANG


@pytest.fixture(scope="session", autouse=True)
def _installed() -> None:
    """What releases import must be there: a skipped test would look like one that passed."""
    missing = ENGINE.backend_of(Named.parse(SGLANG, "sglang==0.5.9:trtllm_mha")).missing()
    if missing is not None:
        pytest.exit(f"tests of SGLang's releases: {missing}, or make test-sglang", returncode=2)


@pytest.fixture
def runner() -> Iterator[Runner]:
    """Judges cases; each release that it meets gets workers of its own, which go with the test."""
    with Runner() as running:
        yield running
