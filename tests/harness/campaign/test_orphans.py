"""After a SIGKILL of the main process nothing of its campaign lives on. Only real processes can show that."""

import shutil
import signal
import time
import uuid
from pathlib import Path

import pytest
from campaign_process import begin, marked_with

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("started")]

SECONDS_TO_BE_GONE = 5.0
OPTIONS = ("--backend", "torch_sdpa", "--examples", "100000")


@pytest.mark.parametrize(
    ("jobs", "many"),
    [(1, 4), *(pytest.param(*of, marks=pytest.mark.long) for of in ((1, 2), (2, 1), (2, 3), (2, 5), (2, 7)))],
)
def test_a_main_process_that_is_killed_leaves_no_process_behind(tmp_path: Path, jobs: int, many: int) -> None:
    """Killed as soon as so many processes run: the main process, then its jobs, their nurseries, their workers."""
    mark = uuid.uuid4().hex
    with begin(tmp_path, *OPTIONS, "--jobs", str(jobs), mark=mark) as campaign:
        deadline = time.monotonic() + 60.0
        while len(marked_with(mark)) < many:
            assert campaign.process.poll() is None, "the campaign ended"
            assert time.monotonic() < deadline, "it takes too long"
            # Each look reads the environment of every process.
            time.sleep(0.1)
        campaign.process.send_signal(signal.SIGKILL)
        campaign.process.wait()
        deadline = time.monotonic() + SECONDS_TO_BE_GONE
        while (left := marked_with(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
    assert left == []
    shutil.rmtree(tmp_path)
