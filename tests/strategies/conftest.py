"""Capabilities like those of the project's backends, and cases drawn for each of them."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Mode, QueryView
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.strategies.cases import cases

MODES = tuple(Mode)
SPECULATIVE = tuple(mode for mode in MODES if mode.speculative)
MHA = Capability(
    modes=MODES,
    graph_modes=SPECULATIVE,
    fp8_kv=True,
    windows=True,
    sinks=True,
    kv_scales=True,
    padding=True,
    query_views=tuple(QueryView),
    kv_views=tuple(KvView),
)
MLA = Capability(
    modes=MODES,
    graph_modes=SPECULATIVE,
    fp8_kv=True,
    latent=True,
    max_head_dim=576,
    page_sizes=(1, 2, 4, 8, 32, 64),
    layouts=(KvLayout.HND,),
    kv_scales=True,
    padding=True,
)
EAGER = Capability(modes=MODES, windows=True, soft_cap=True, unequal_head_dims=True)

Draw = Callable[[SearchStrategy[Case], int], list[Case]]


def _draw(strategy: SearchStrategy[Case], count: int) -> list[Case]:
    drawn: list[Case] = []

    @seed(20250701)
    @settings(
        max_examples=count,
        database=None,
        derandomize=False,
        phases=(Phase.generate,),
        suppress_health_check=tuple(HealthCheck),
        deadline=None,
    )
    @given(strategy)
    def collect(case: Case) -> None:
        drawn.append(case)

    collect()
    return drawn


@pytest.fixture(scope="session")
def draw() -> Draw:
    """Draw so many cases from a strategy: the same in every run."""
    return _draw


@pytest.fixture(scope="session")
def mha() -> list[Case]:
    """Cases for a backend with graphs, padding and every view."""
    return _draw(cases(MHA, "mha"), 600)


@pytest.fixture(scope="session")
def mla() -> list[Case]:
    """Cases for a backend with latents, graphs and padding."""
    return _draw(cases(MLA, "mla"), 600)


@pytest.fixture(scope="session")
def eager() -> list[Case]:
    """Cases for a backend without graphs and padding."""
    return _draw(cases(EAGER, "eager"), 600)


@pytest.fixture(params=["mha", "mla", "eager"])
def drawn(request: pytest.FixtureRequest) -> list[Case]:
    """Each of the above."""
    result: list[Case] = request.getfixturevalue(request.param)
    return result


@pytest.fixture
def capability(drawn: list[Case]) -> Capability:
    """The capability that `drawn` was drawn for."""
    return {"mha": MHA, "mla": MLA, "eager": EAGER}[drawn[0].backend]
