"""The pytest plugin: the fixture `attn_fuzz`, whose test is a campaign.

    def test_fuzz(attn_fuzz):
        attn_fuzz.run()

It is loaded in every test run of an environment with attnfuzz, so it imports nothing heavy until it is used.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from attnfuzz.harness.backends.engines import DEFAULT_BACKENDS, DEFAULT_BACKENDS_ON_GPU, LIBRARIES, engine_names
from attnfuzz.harness.campaign.plan import MOST_EXAMPLES, MOST_SEED, PRESETS, Plan, parse_duration

if TYPE_CHECKING:
    from attnfuzz.harness.pytest.campaign import FuzzCampaign

DEFAULT_EXAMPLES = 200

_REMARK = pytest.StashKey[str | None]()
"""A line on the ledger, for the report's header."""


@dataclass(frozen=True)
class AttnFuzz:
    """The value of the fixture `attn_fuzz`: a campaign of the backends in the options."""

    search: "FuzzCampaign"

    def run(self) -> None:
        """Search; fail with the causes, their smallest cases and lines that replay them if there are findings.

        If the ledger lists all findings, the test is xfailed.
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
        help=f"cases of each backend to draw and judge (default: {DEFAULT_EXAMPLES})",
    )
    group.addoption("--attn-time", metavar="TIME", help="instead: time to search in all, like 90s, 10m or 1h30m")
    group.addoption("--attn-preset", metavar="NAME", help="instead: the budget of attnfuzz fuzz --preset NAME")
    group.addoption(
        "--attn-home",
        type=Path,
        metavar="DIR",
        help="folder that keeps findings, corpus and reports from run to run (default: one of pytest's temporary ones)",
    )
    group.addoption("--attn-ledger", type=Path, metavar="FILE", help="known failures, which are xfailed: a TOML file")
    group.addoption(
        "--attn-device",
        choices=["cpu", "cuda"],
        help="device to fuzz on: with cuda, trtllm_mha is the visible GPU's (default: by the backend's name)",
    )
    group.addoption("--attn-guard", choices=["left", "right"], help="edge to guard (default: either, by the case)")
    group.addoption("--attn-seed", type=int, metavar="N", help="seed of the cases that are drawn (default: a new one)")


def pytest_configure(config: pytest.Config) -> None:
    """Check the options, once for all processes of pytest-xdist."""
    if not hasattr(config, "workerinput"):
        _check_options(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Show the ledger's remark."""
    remark = config.stash.get(_REMARK, None)
    return None if remark is None else f"attnfuzz: {remark}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check that a test with the fixture can run here."""
    if "attn_fuzz" not in metafunc.fixturenames:
        return
    from attnfuzz.harness.workers.system import WrongSystem, require_linux

    with _refusing("attn_fuzz", WrongSystem):
        require_linux()
    if (jobs := _jobs(metafunc.config)) > 1:
        _check_room(jobs, _backends(metafunc.config))


@pytest.fixture
def attn_fuzz(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AttnFuzz:
    """Provide a campaign of all backends; `attn_fuzz.run()` searches."""
    from attnfuzz.harness.pytest.campaign import FuzzCampaign
    from attnfuzz.reference.case import Guard

    config = request.config
    home, seed, guard = (config.getoption(f"--attn-{name}") for name in ("home", "seed", "guard"))
    examples, seconds = _budget(config)
    plan = Plan(
        backends=_backends(config),
        out=tmp_path_factory.mktemp("attnfuzz") if home is None else home,
        examples=examples,
        seconds=seconds,
        seed=secrets.randbits(32) if seed is None else seed,
        jobs=_jobs(config),
        guard=None if guard is None else Guard(guard),
        ledger=config.getoption("--attn-ledger"),
    )
    return AttnFuzz(FuzzCampaign(plan))


def _jobs(config: pytest.Config) -> int:
    """Count the workers of pytest-xdist: the test runs on one of them, and its jobs replace the others."""
    jobs: int = getattr(config, "workerinput", {}).get("workercount", 1)
    return jobs


def _budget(config: pytest.Config) -> tuple[int | None, float | None]:
    """Read the examples for each backend, or the seconds for all, from the options. Raises UsageError."""
    examples, time, preset = (config.getoption(f"--attn-{name}") for name in ("examples", "time", "preset"))
    if sum(option is not None for option in (examples, time, preset)) > 1:
        raise pytest.UsageError("--attn-examples, --attn-time and --attn-preset are all budgets: give one of them")
    if time is None and preset is None:
        if examples is not None and not 1 <= examples <= MOST_EXAMPLES:
            raise pytest.UsageError(f"--attn-examples must be at least 1, and at most {MOST_EXAMPLES:,}")
        return DEFAULT_EXAMPLES if examples is None else examples, None
    if preset is None:
        with _refusing("--attn-time", ValueError):
            return None, parse_duration(time)
    if preset not in PRESETS:
        raise pytest.UsageError(f"--attn-preset {preset}: give one of {', '.join(PRESETS)}")
    return PRESETS[preset].examples, PRESETS[preset].seconds


def _check_options(config: pytest.Config) -> None:
    _budget(config)
    if (seed := config.getoption("--attn-seed")) is not None and not 0 <= seed <= MOST_SEED:
        raise pytest.UsageError("--attn-seed must not be negative, and have at most 63 bits")
    if any(map(config.getoption, ("--attn-backend", "--attn-device"))) or any(
        _tree(config, engine) for engine in engine_names()
    ):
        _check_backends(_backends(config))
    if (ledger := config.getoption("--attn-ledger")) is not None:
        from attnfuzz.harness.ledger.file import Ledger, LedgerError

        with _refusing("--attn-ledger", LedgerError):
            config.stash[_REMARK] = Ledger.load(ledger).remark


def _check_room(workers: int, backends: Sequence[str]) -> None:
    """Raise UsageError if the memory is not enough for this many fuzzing processes."""
    from attnfuzz.harness.campaign.prepare import NoRoom, check_room
    from attnfuzz.reference.user_error import UserError

    try:
        check_room(workers, backends, instead="pytest-xdist -n {most}")
    except NoRoom as error:
        raise pytest.UsageError(str(error)) from error
    except UserError:
        # A backend that can't be loaded: the test fails with it.
        return


def _backends(config: pytest.Config) -> tuple[str, ...]:
    """List the backends to fuzz, each once. Raises UsageError."""
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
    """Add the backends of the source tree. Raises UsageError."""
    from attnfuzz.harness.backends.engines import engine_named
    from attnfuzz.kernels.interface.engine import EngineError

    found = engine_named(engine)
    assert found is not None
    # pathlib raises for a path that no file can have.
    if not os.path.isdir(tree):  # noqa: PTH112
        raise pytest.UsageError(f"--attn-{engine} {tree} is not a folder: name a checkout of {found.title}")
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
