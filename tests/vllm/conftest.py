"""Releases of vLLM are downloaded once, into the cache that campaigns use too."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from planted_tree import planted_tree

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.kernels.releases.project import Project
from attnfuzz.kernels.vllm.engine import ENGINE
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.reference.case import Case


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


@pytest.fixture
def passes(runner: Runner) -> Callable[[Case], Verdict]:
    """Judges a case that must pass."""

    def judged(case: Case) -> Verdict:
        verdict = runner.verdict(case)
        assert verdict.unsupported is None
        assert verdict.failures == ()
        return verdict

    return judged


Plant = Callable[..., str]
"""Copies a version, with one text in a file replaced. Returns the name of the tree."""


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Plants a mistake in a copy of a release."""

    def planted(version: str, place: Path, right: str, wrong: str, project: Project = VLLM) -> str:
        return planted_tree(project, version, tmp_path, (place, right, wrong))

    return planted
