"""The pytest plugin: the fixture `attn_fuzz`, which fuzzes backends in shards that pytest-xdist can spread.

    def test_fuzz(attn_fuzz):
        attn_fuzz.run()

It is loaded in every test run of an environment with attnfuzz, so it imports nothing heavy until it is used.
"""

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from attnfuzz.harness.defaults import DEFAULT_BACKENDS

if TYPE_CHECKING:
    from attnfuzz.harness.shard import Shard

DEFAULT_EXAMPLES = 200
SHARDS = 4
"""Shards of each backend's examples, however many workers there are: what is drawn must not depend on that."""

_SEED = pytest.StashKey[int]()


@dataclass(frozen=True)
class AttnFuzz:
    """What the fixture `attn_fuzz` is: one shard of a fuzz test."""

    shard: "Shard"

    def run(self) -> None:
        """Search the shard, and fail with the shrunk case and a line that replays it if something is found."""
        __tracebackhide__ = True
        failures = self.shard.failures()
        if failures:
            again = f"The same search: --attn-backend {self.shard.backend} --attn-seed {self.shard.seed}"
            pytest.fail("\n\n".join([*failures, again]), pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("attnfuzz", "fuzzing of attention kernels")
    group.addoption(
        "--attn-backend",
        action="append",
        metavar="NAME",
        help=f"backend to fuzz; may be given several times (default: {', '.join(DEFAULT_BACKENDS)})",
    )
    group.addoption(
        "--attn-examples",
        type=int,
        default=DEFAULT_EXAMPLES,
        metavar="N",
        help="cases to draw for each backend (default: %(default)s)",
    )
    group.addoption("--attn-device", default="cpu", metavar="DEVICE", help="where backends run: cpu")
    group.addoption("--attn-guard", choices=["left", "right"], help="edge to guard (default: either, by the case)")
    group.addoption("--attn-seed", type=int, metavar="N", help="seed of all shards (default: a new one)")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, and settle the seed for all workers of pytest-xdist."""
    handed: dict[str, int] | None = getattr(config, "workerinput", None)
    if handed is not None:
        config.stash[_SEED] = handed["attn_seed"]
        return
    _check_options(config)
    seed = config.getoption("--attn-seed")
    config.stash[_SEED] = secrets.randbits(32) if seed is None else seed


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the seed to a worker of pytest-xdist."""
    node.workerinput["attn_seed"] = node.config.stash[_SEED]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each shard of each backend."""
    if "attn_fuzz" not in metafunc.fixturenames:
        return
    backends = metafunc.config.getoption("--attn-backend") or DEFAULT_BACKENDS
    examples = metafunc.config.getoption("--attn-examples")
    shares = [len(range(index, examples, SHARDS)) for index in range(min(SHARDS, examples))]
    metafunc.parametrize(
        "attn_fuzz",
        [(backend, index, share) for backend in dict.fromkeys(backends) for index, share in enumerate(shares)],
        ids=lambda shard: f"{shard[0]}-{shard[1] + 1}of{len(shares)}",
        indirect=True,
    )


@pytest.fixture
def attn_fuzz(request: pytest.FixtureRequest) -> AttnFuzz:
    """One shard of a fuzz test; `attn_fuzz.run()` searches it."""
    # Imported late: this module is loaded in every test run.
    from attnfuzz.harness.shard import Shard  # noqa: PLC0415

    backend, index, examples = request.param
    guard = request.config.getoption("--attn-guard")
    return AttnFuzz(
        Shard(backend=backend, index=index, examples=examples, seed=request.config.stash[_SEED], guard=guard)
    )


def _check_options(config: pytest.Config) -> None:
    if config.getoption("--attn-examples") < 1:
        raise pytest.UsageError("--attn-examples must be at least 1")
    if (seed := config.getoption("--attn-seed")) is not None and seed < 0:
        raise pytest.UsageError("--attn-seed must not be negative")
    if (device := config.getoption("--attn-device")) != "cpu":
        raise pytest.UsageError(f"--attn-device {device}: backends run on the CPU only so far; use cpu")
    backends = config.getoption("--attn-backend")
    if backends:
        # Imported late: this module is loaded in every test run.
        from attnfuzz.harness.registry import BackendFileError, UnknownBackend, resolve  # noqa: PLC0415

        for name in backends:
            try:
                why_not = resolve(name).missing()
            except (UnknownBackend, BackendFileError) as error:
                raise pytest.UsageError(f"--attn-backend: {error}") from error
            if why_not is not None:
                raise pytest.UsageError(f"--attn-backend {name} can't run here: {why_not}")
