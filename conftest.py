"""Common setup of all tests: fixed draws, little work twice, and no processes started by `make quick`."""

import fcntl
import gc
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest

from attnfuzz.strategies.lighter_draws import without_constants_of_sources

# Collected tests live as long as this process: the garbage collector would examine all of them again and again.
gc.disable()

pytest_plugins = ["pytester"]

START_PROCESSES = frozenset({"defective", "dying", "pytester", "runner", "touching", "workers"})
"""Fixtures that start processes. Tests that use one are slow."""

NAMED_FOR_MARKERS = frozenset({"cluster", "serve", "sglang", "vllm"})
"""Folders in tests/ whose tests all have the marker of the same name."""

COMPILED = Path(cache_from_source(__file__)).with_name("compiled")
"""Empty until all modules have their bytecode, beside that of this one."""


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Use one thread, since tests run in as many processes as there are cores, and more threads would spin."""
    # With -n, the process that starts the others runs no test: importing torch would take 1.3 s of CPU time.
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no tests that the markers leave out: those of `cluster` import Ray, if it is installed."""
    name, own = collection_path.name, collection_path.parent == config.rootpath / "tests"
    return True if own and name in NAMED_FOR_MARKERS and f"not {name}" in config.getoption("markexpr") else None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect in one process after the other the first time: the bytecode of 3,800 modules takes 17 s of CPU time."""
    with ExitStack() as at_the_end:
        if hasattr(session.config, "workerinput") and not sys.dont_write_bytecode:
            turn = at_the_end.enter_context(COMPILED.open("a"))
            if not turn.tell():
                fcntl.flock(turn, fcntl.LOCK_EX)
                turn.write("yes")
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests with a fixture of START_PROCESSES as slow."""
    for item in items:
        if START_PROCESSES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Exclude the modules and the tests from garbage collection: 420,000 objects that live as long as this process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Make draws independent of the loaded modules. If slow tests are left out, check that the others start no process.

    Earlier tests determine which modules are loaded. Hypothesis would also parse the sources of all after collection.
    """
    constants = ExitStack()
    constants.enter_context(without_constants_of_sources())
    config.add_cleanup(constants.close)
    # With -n, tests run in the processes of pytest-xdist, which this one starts.
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if runs_tests and "not slow" in config.getoption("markexpr"):
        sys.addaudithook(_note_process)


def pytest_runtest_teardown() -> None:
    """Fail a quick test that started a process."""
    if STARTED:
        STARTED.clear()
        pytest.fail("this test starts a process: mark it with pytest.mark.slow")


STARTED: list[str] = []
"""The processes started by the current test, if they are watched."""


def _note_process(event: str, arguments: tuple[Any, ...]) -> None:
    # Compilers and git may run: kernels are compiled once, and a campaign records its versions.
    python = event == "subprocess.Popen" and Path(str(arguments[0])).name.startswith("python")
    if python or event == "os.fork":
        STARTED.append(event)
