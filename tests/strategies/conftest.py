"""Cases drawn for three of the project's backends, once for all tests."""

import fcntl
import os
from collections.abc import Callable
from functools import cache

import msgspec
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
DrawnFor = Callable[[str, Capability, int], list[Case]]


def _draw(strategy: SearchStrategy[Case], count: int) -> list[Case]:
    drawn: list[Case] = []
    run_examples(strategy, drawn.append, examples=count, seed_of=20250701)
    return drawn


@pytest.fixture(scope="session")
def draw() -> Draw:
    """Draw so many cases from a strategy: the same in every run, and once for all tests."""
    return cache(_draw)


@pytest.fixture(scope="session")
def drawn_for(tmp_path_factory: pytest.TempPathFactory) -> DrawnFor:
    """Draw cases for a capability under a name: in one of the processes of pytest-xdist, which leaves a copy."""
    own = tmp_path_factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    @cache
    def drawn(name: str, can: Capability, count: int) -> list[Case]:
        with (folder / f"drawn-{name}").open("ab+") as copy:
            fcntl.flock(copy, fcntl.LOCK_EX)
            copy.seek(0)
            if not (kept := copy.read()):
                kept = msgspec.msgpack.encode(_draw(cases(can, name), count))
                copy.write(kept)
            return msgspec.msgpack.decode(kept, type=list[Case])

    return drawn


@pytest.fixture(scope="session")
def mha(drawn_for: DrawnFor) -> list[Case]:
    """Cases for a backend with graphs, padding and every view."""
    return drawn_for("mha", MHA, 540)


@pytest.fixture(scope="session")
def mla(drawn_for: DrawnFor) -> list[Case]:
    """Cases for a backend with latents, graphs and padding."""
    return drawn_for("mla", MLA, 480)


@pytest.fixture(scope="session")
def eager(drawn_for: DrawnFor) -> list[Case]:
    """Cases for a backend without graphs and padding."""
    return drawn_for("eager", EAGER, 400)


@pytest.fixture(params=["mha", "mla", "eager"])
def drawn(request: pytest.FixtureRequest) -> list[Case]:
    """Each of the above."""
    result: list[Case] = request.getfixturevalue(request.param)
    return result


@pytest.fixture
def capability(drawn: list[Case]) -> Capability:
    """The capability that `drawn` was drawn for."""
    return {"mha": MHA, "mla": MLA, "eager": EAGER}[drawn[0].backend]
