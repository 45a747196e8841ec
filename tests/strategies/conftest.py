"""Cases drawn for three of the project's backends, once for all tests."""

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis.strategies import SearchStrategy
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.strategies.cases import cases

MHA, MLA = (resolve(name).capability for name in ("trtllm_mha", "trtllm_mla"))
EAGER = replace(resolve("torch_sdpa").capability, soft_cap=True)
"""Without graphs and padding, and with every feature that needs neither."""

Draw = Callable[[SearchStrategy[Case], int], list[Case]]


def _draw(strategy: SearchStrategy[Case], count: int) -> list[Case]:
    drawn: list[Case] = []
    run_examples(strategy, drawn.append, examples=count, seed_of=20250701)
    return drawn


@pytest.fixture(scope="session")
def draw() -> Draw:
    """Draw so many cases from a strategy: the same in every run, and once for all tests."""
    return cache(_draw)


@pytest.fixture(scope="session")
def mha(draw: Draw) -> list[Case]:
    """Cases for a backend with graphs, padding and every view."""
    return draw(cases(MHA, "mha"), 600)


@pytest.fixture(scope="session")
def mla(draw: Draw) -> list[Case]:
    """Cases for a backend with latents, graphs and padding."""
    return draw(cases(MLA, "mla"), 600)


@pytest.fixture(scope="session")
def eager(draw: Draw) -> list[Case]:
    """Cases for a backend without graphs and padding."""
    return draw(cases(EAGER, "eager"), 600)


@pytest.fixture(params=["mha", "mla", "eager"])
def drawn(request: pytest.FixtureRequest) -> list[Case]:
    """Each of the above."""
    result: list[Case] = request.getfixturevalue(request.param)
    return result


@pytest.fixture
def capability(drawn: list[Case]) -> Capability:
    """The capability that `drawn` was drawn for."""
    return {"mha": MHA, "mla": MLA, "eager": EAGER}[drawn[0].backend]
