"""The pytest plugin: the fixture `attn_fuzz`, which fuzzes backends in shards that pytest-xdist can spread.

    def test_fuzz(attn_fuzz):
        attn_fuzz.run()

It is loaded in every test run of an environment with attnfuzz, so it imports nothing heavy until it is used.
"""

import math
import os
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from attnfuzz.harness.backends.engines import DEFAULT_BACKENDS, DEFAULT_BACKENDS_ON_GPU, LIBRARIES, engine_names

if TYPE_CHECKING:
    from attnfuzz.harness.pytest.campaign import HomeCampaign
    from attnfuzz.harness.pytest.found import Found

DEFAULT_EXAMPLES = 200
MOST_EXAMPLES = 10**12
SHARDS = 4
"""Shards of each backend's examples, whatever the number of workers: the drawn cases must not depend on it."""


@dataclass(frozen=True)
class FuzzSession:
    """State shared by all processes of one test run: the seed of all shards, and the folder of their claims."""

    seed: int
    claims: Path


@dataclass(frozen=True)
class Budget:
    """The number of `examples` for each backend, or of `seconds` for all of them; the other is infinite."""

    examples: float = math.inf
    seconds: float = math.inf

    def shares(self, backends: int, workers: int) -> list["Budget"]:
        """Split the budget into shards per backend, if `workers` run the shards of this many `backends` concurrently.

        Time is shared so that all workers end together: each gets as many shards as the others.
        """
        if math.isinf(self.seconds):
            whole = int(self.examples)
            return [Budget(examples=len(range(index, whole, SHARDS))) for index in range(min(SHARDS, whole))]
        fair = workers // math.gcd(workers, backends)
        shards = fair * math.ceil(SHARDS / fair)
        return [Budget(seconds=self.seconds * workers / (shards * backends))] * shards


_RUN = pytest.StashKey[FuzzSession]()


class Search(Protocol):
    """A search of backends."""

    def found(self) -> "Found":
        """Search, and return the findings."""


@dataclass(frozen=True)
class AttnFuzz:
    """The value of the fixture `attn_fuzz`: one shard of a fuzz test, or the campaign of `--attn-home`."""

    search: Search

    def run(self) -> None:
        """Search; fail with the shrunk cases and lines that replay them if there are findings.

        Findings of other shards of this run are skipped. If all findings are in the ledger, the test is xfailed. A
        campaign reports causes instead, which may have several findings, and leaves everything in its home.
        """
        __tracebackhide__ = True
        from attnfuzz.reference.user_error import UserError

        try:
            new, known, again = self.search.found()
        except UserError as error:
            pytest.fail(str(error), pytrace=False)
        if new:
            pytest.fail("\n\n".join([*new, *known, again]), pytrace=False)
        if known:
            pytest.xfail("; ".join(known))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("attnfuzz", "fuzzing of attention kernels")
    group.addoption(
        "--attn-backend",
        action="append",
        metavar="NAME",
        help=f"backend to fuzz; may be given several times (default: {', '.join(DEFAULT_BACKENDS)})",
    )
    for engine in engine_names():
        group.addoption(
            f"--attn-{engine}",
            type=Path,
            metavar="PATH",
            help=f"source tree of {engine}: for --attn-backend {engine}:KIND; fuzzed if no backend is given",
        )
    group.addoption(
        "--attn-examples",
        type=int,
        metavar="N",
        help=f"cases to draw for each backend (default: {DEFAULT_EXAMPLES})",
    )
    group.addoption("--attn-time", metavar="TIME", help="instead: time to search in all, like 90s, 10m or 1h30m")
    group.addoption("--attn-preset", metavar="NAME", help="instead: the budget of attnfuzz fuzz --preset NAME")
    group.addoption(
        "--attn-home",
        type=Path,
        metavar="DIR",
        help="run a campaign instead of shards: its causes, corpus, findings and reports are kept in this folder",
    )
    group.addoption("--attn-ledger", type=Path, metavar="FILE", help="known failures, which are xfailed: a TOML file")
    group.addoption(
        "--attn-device",
        choices=["cpu", "cuda"],
        help="device to fuzz on: with cuda, trtllm_mha is the visible GPU's (default: by the backend's name)",
    )
    group.addoption("--attn-guard", choices=["left", "right"], help="edge to guard (default: either, by the case)")
    group.addoption("--attn-seed", type=int, metavar="N", help="seed of all shards (default: a new one)")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, and set up the state shared by pytest-xdist's workers."""
    handed: dict[str, Any] | None = getattr(config, "workerinput", None)
    if handed is not None:
        config.stash[_RUN] = FuzzSession(seed=handed["attn_seed"], claims=Path(handed["attn_claims"]))
        return
    _check_options(config)
    seed = config.getoption("--attn-seed")
    config.stash[_RUN] = FuzzSession(
        seed=secrets.randbits(32) if seed is None else seed,
        claims=Path(tempfile.gettempdir()) / f"attnfuzz-{uuid.uuid4().hex}",
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the claims at the end of the run."""
    # Absent if configuring failed.
    run = config.stash.get(_RUN, None)
    if run is not None and not hasattr(config, "workerinput"):
        shutil.rmtree(run.claims, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the shared state to a pytest-xdist worker."""
    run = node.config.stash[_RUN]
    node.workerinput["attn_seed"] = run.seed
    node.workerinput["attn_claims"] = str(run.claims)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test per shard of each backend."""
    if "attn_fuzz" not in metafunc.fixturenames:
        return
    from attnfuzz.harness.workers.system import WrongSystem, require_linux

    with _refusing("attn_fuzz", WrongSystem):
        require_linux()
    config = metafunc.config
    backends = _backends(config)
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1:
        _check_room(workers, backends)
    if config.getoption("--attn-home") is not None:
        # One test for all backends, which share its time by their yield; its jobs replace the workers of pytest-xdist.
        metafunc.parametrize("attn_fuzz", [(backends, workers, _budget(config))], ids=["campaign"], indirect=True)
        return
    shares = _budget(config).shares(len(backends), workers)
    metafunc.parametrize(
        "attn_fuzz",
        [(backend, index, share) for backend in backends for index, share in enumerate(shares)],
        ids=lambda shard: f"{shard[0]}-{shard[1] + 1}of{len(shares)}",
        indirect=True,
    )


@pytest.fixture
def attn_fuzz(request: pytest.FixtureRequest) -> AttnFuzz:
    """One shard of a fuzz test, or a campaign with `--attn-home`; `attn_fuzz.run()` searches."""
    if request.config.getoption("--attn-home") is not None:
        return AttnFuzz(_campaign(request))
    from attnfuzz.harness.findings.ledger import Ledger
    from attnfuzz.harness.pytest.shard import Claims, Shard, ShardSearch

    backend, index, share = request.param
    config = request.config
    run = config.stash[_RUN]
    ledger = config.getoption("--attn-ledger")
    shard = Shard(
        backend=backend,
        index=index,
        seed=run.seed,
        examples=share.examples,
        seconds=share.seconds,
        guard=config.getoption("--attn-guard"),
    )
    claims = Claims(run.claims, request.node.nodeid)
    return AttnFuzz(ShardSearch(shard, Ledger() if ledger is None else Ledger.load(ledger), claims))


def _campaign(request: pytest.FixtureRequest) -> "HomeCampaign":
    from attnfuzz.harness.campaign.plan import Plan
    from attnfuzz.harness.pytest.campaign import HomeCampaign
    from attnfuzz.reference.case import Guard

    backends, jobs, budget = request.param
    config = request.config
    guard = config.getoption("--attn-guard")
    plan = Plan(
        backends=backends,
        out=config.getoption("--attn-home"),
        examples=None if math.isinf(budget.examples) else int(budget.examples),
        seconds=None if math.isinf(budget.seconds) else budget.seconds,
        seed=config.stash[_RUN].seed,
        jobs=jobs,
        guard=None if guard is None else Guard(guard),
        ledger=config.getoption("--attn-ledger"),
    )
    return HomeCampaign(plan)


def _budget(config: pytest.Config) -> Budget:
    """The budget in the options. Raises UsageError."""
    examples, time, preset = (config.getoption(f"--attn-{name}") for name in ("examples", "time", "preset"))
    if sum(option is not None for option in (examples, time, preset)) > 1:
        raise pytest.UsageError("--attn-examples, --attn-time and --attn-preset are all budgets: give one of them")
    if time is None and preset is None:
        if examples is not None and not 1 <= examples <= MOST_EXAMPLES:
            raise pytest.UsageError(f"--attn-examples must be at least 1, and at most {MOST_EXAMPLES:,}")
        return Budget(examples=DEFAULT_EXAMPLES if examples is None else examples)
    from attnfuzz.harness.campaign.plan import PRESETS, parse_duration

    if preset is None:
        with _refusing("--attn-time", ValueError):
            return Budget(seconds=parse_duration(time))
    if preset not in PRESETS:
        raise pytest.UsageError(f"--attn-preset {preset}: give one of {', '.join(PRESETS)}")
    chosen = PRESETS[preset]
    return Budget(examples=chosen.examples or math.inf, seconds=chosen.seconds or math.inf)


def _check_options(config: pytest.Config) -> None:
    _budget(config)
    if (seed := config.getoption("--attn-seed")) is not None and not 0 <= seed < 1 << 63:
        raise pytest.UsageError("--attn-seed must not be negative, and have at most 63 bits")
    if any(map(config.getoption, ("--attn-backend", "--attn-device"))) or any(
        _tree(config, engine) for engine in engine_names()
    ):
        _check_backends(_backends(config))
    if (ledger := config.getoption("--attn-ledger")) is not None:
        from attnfuzz.harness.findings.ledger import Ledger, LedgerError

        with _refusing("--attn-ledger", LedgerError):
            Ledger.load(ledger)


def _check_room(workers: int, backends: Sequence[str]) -> None:
    """Raise UsageError if the memory is not enough for this many fuzzing processes."""
    from attnfuzz.harness.campaign.prepare import NoRoom, check_room
    from attnfuzz.reference.user_error import UserError

    try:
        check_room(workers, backends, instead="pytest-xdist -n {most}")
    except NoRoom as error:
        raise pytest.UsageError(str(error)) from error
    except UserError:
        # A backend that can't be loaded: each shard fails with it.
        return


def _backends(config: pytest.Config) -> tuple[str, ...]:
    """The backends to fuzz, each once. Raises UsageError."""
    named, device = config.getoption("--attn-backend"), config.getoption("--attn-device")
    for engine in engine_names():
        if (tree := _tree(config, engine)) is not None:
            named = _of_tree(engine, tree, named or ())
    if device is None and LIBRARIES not in (named or ()):
        return tuple(dict.fromkeys(named or DEFAULT_BACKENDS))
    from attnfuzz.harness.backends.registry import on_device, with_libraries
    from attnfuzz.reference.device import Device
    from attnfuzz.reference.user_error import UserError

    names = named or (DEFAULT_BACKENDS_ON_GPU if device == "cuda" else DEFAULT_BACKENDS)
    with _refusing("--attn-backend" if device is None else f"--attn-device {device}", UserError):
        where = None if device is None else Device(device)
        return tuple(dict.fromkeys(on_device(name, where) for name in with_libraries(names)))


def _tree(config: pytest.Config, engine: str) -> Path | None:
    """Return the source tree that was given. Before pytest 9, engines on `pythonpath` come too late for an option."""
    tree: Path | None = config.getoption(f"--attn-{engine}", None)
    return tree


def _of_tree(engine: str, tree: Path, named: Sequence[str]) -> tuple[str, ...]:
    """The backends with those of the source tree. Raises UsageError."""
    from attnfuzz.harness.backends.engines import engine_named
    from attnfuzz.kernels.engine import EngineError

    found = engine_named(engine)
    assert found is not None
    # pathlib raises for a path that no file can have.
    if not os.path.isdir(tree):  # noqa: PTH112
        raise pytest.UsageError(f"--attn-{engine} {tree} is no folder: name a checkout of {found.title}")
    with _refusing(f"--attn-{engine}", EngineError):
        return found.of_tree(tree, named)


def _check_backends(names: Sequence[str]) -> None:
    """Raise UsageError for a backend that can't run here."""
    from attnfuzz.harness.backends.registry import resolve
    from attnfuzz.reference.user_error import UserError

    for name in names:
        with _refusing("--attn-backend", UserError):
            why_not = resolve(name).missing()
        if why_not is not None:
            raise pytest.UsageError(f"--attn-backend {name} can't run here: {why_not}")


@contextmanager
def _refusing(option: str, mistake: type[Exception]) -> Iterator[None]:
    """Raise UsageError for a mistake in an option."""
    try:
        yield
    except mistake as error:
        raise pytest.UsageError(f"{option}: {error}") from error
