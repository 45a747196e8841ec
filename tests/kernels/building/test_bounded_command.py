"""Commands whose end is not awaited without a limit."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from attnfuzz.kernels.building import bounded_command
from attnfuzz.kernels.building.bounded_command import TooSlow, output_of

_SLEEP = [sys.executable, "-S", "-c", "import time; print('begun', flush=True); time.sleep(600)"]


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes that a signal does not end, like one inside a driver that hangs."""
    kill = subprocess.Popen.kill
    asked: list[subprocess.Popen[bytes]] = []

    def ignored(process: subprocess.Popen[bytes]) -> None:
        asked.append(process)

    monkeypatch.setattr(subprocess.Popen, "kill", ignored)
    monkeypatch.setattr(bounded_command, "_SECONDS_TO_DIE", 0.05)
    yield
    (process,) = asked
    kill(process)
    process.wait()


def test_the_output_of_a_command_is_returned_unless_it_fails() -> None:
    assert output_of(["echo", "text"], seconds=60) == "text\n"
    assert output_of(["sh", "-c", "echo text; exit 3"], seconds=60) is None
    assert output_of(["sh", "-c", "echo text >&2; exit 3"], seconds=60, always=True) == "text\n"
    with pytest.raises(FileNotFoundError):
        output_of(["no-such-command"], seconds=60)


@pytest.mark.slow
def test_a_command_that_takes_too_long_is_killed() -> None:
    with pytest.raises(TooSlow):
        output_of(_SLEEP, seconds=0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("unkillable")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_command_that_cannot_be_killed_is_left_behind() -> None:
    with pytest.raises(TooSlow):
        output_of(_SLEEP, seconds=0.1)
