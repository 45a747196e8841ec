"""Job processes."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_search import decode
from hypothesis.errors import FlakyStrategyDefinition

from attnfuzz.harness.campaign import job
from attnfuzz.harness.campaign import jobs as jobs_module
from attnfuzz.harness.campaign.jobs import JobEnded, JobProcesses
from attnfuzz.harness.search.messages import JobSetup, Slice, SliceDone, Unable
from attnfuzz.harness.workers import left_behind
from attnfuzz.harness.workers.gpu_gone import GpuGone

pytestmark = pytest.mark.slow


def setup(*backends: str) -> JobSetup:
    return JobSetup(backends=backends, contract="declared", guard=None)


def wait_for_end_of_slice(jobs: JobProcesses) -> SliceDone:
    while True:
        received = jobs.next_message(60)
        assert received is not None, "no message in a minute"
        if isinstance(received[1], SliceDone):
            return received[1]


def test_a_job_searches_a_slice() -> None:
    with JobProcesses(1, setup("torch_sdpa")) as jobs:
        jobs.start(0, Slice(backend="torch_sdpa", index=0, seed=1, examples=5))
        done = wait_for_end_of_slice(jobs)
    assert (done.tally.searched, done.stopped_early) == (5, False)


def test_a_job_finds_the_backends_that_the_main_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a folder on `pythonpath` in pytest's configuration."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "elsewhere.py").write_text(
        "from attnfuzz.kernels.libraries.torch_sdpa import SDPA_BACKENDS\n\nMINE = SDPA_BACKENDS[0]\n"
    )
    (tmp_path / "elsewhere-1.0.dist-info").mkdir()
    points = "[attnfuzz.backends]\nelsewhere = elsewhere:MINE\n"
    (tmp_path / "elsewhere-1.0.dist-info" / "entry_points.txt").write_text(points)
    with JobProcesses(1, setup("elsewhere")) as jobs:
        jobs.start(0, Slice(backend="elsewhere", index=0, seed=1, examples=2))
        assert wait_for_end_of_slice(jobs).tally.searched == 2


def test_a_job_that_fails_is_reported_with_its_traceback() -> None:
    with JobProcesses(1, setup()) as jobs, pytest.raises(JobEnded) as ended:
        wait_for_end_of_slice(jobs)
    assert "IndexError" in ended.value.text
    assert not ended.value.killed


def test_a_job_that_cannot_go_on_for_a_reason_that_a_user_can_fix_says_it_in_one_line() -> None:
    with JobProcesses(1, setup("no_such_backend")) as jobs:
        received = jobs.next_message(60)
        assert received is not None
        assert isinstance(received[1], Unable)
        assert "unknown backend" in received[1].text
        with pytest.raises(JobEnded) as ended:
            wait_for_end_of_slice(jobs)
    assert ended.value.text == "(job process 0 ended with status 1)"


def test_a_job_whose_gpu_is_gone_names_the_case_that_ran_last() -> None:
    assert job._unable(GpuGone("no device"), None) == Unable(text="the GPU does not answer: no device")
    assert job._unable(GpuGone("no device"), decode(9)) == Unable(
        text="the GPU does not answer any more: no device", last=decode(9)
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_job_that_is_killed_in_the_middle_of_a_slice_can_be_started_anew(number: signal.Signals) -> None:
    with JobProcesses(1, setup("torch_sdpa")) as jobs:
        jobs.start(0, Slice(backend="torch_sdpa", index=0, seed=1, examples=100_000))
        assert jobs.next_message(60) is not None
        os.kill(jobs._processes[0]._process.pid, number)
        with pytest.raises(JobEnded) as ended:
            wait_for_end_of_slice(jobs)
        assert ended.value.killed
        jobs.restart(0)
        jobs.start(0, Slice(backend="torch_sdpa", index=0, seed=1, examples=5))
        assert wait_for_end_of_slice(jobs).tally.searched == 5


@pytest.mark.parametrize("terminated", [True, False])
def test_a_job_that_is_terminated_in_a_draw_ends_silently(monkeypatch: pytest.MonkeyPatch, *, terminated: bool) -> None:
    """Hypothesis takes what a draw raises for an unsteady strategy, and raises an error of its own."""

    def main() -> None:
        if terminated:
            with contextlib.suppress(job._Terminated):
                job._leave(signal.SIGTERM, None)
        raise FlakyStrategyDefinition

    monkeypatch.setattr(job, "main", main)
    monkeypatch.setattr(job._Terminated, "came", False)
    with contextlib.nullcontext() if terminated else pytest.raises(FlakyStrategyDefinition):
        job.be_a_job()


def test_a_termination_that_a_callback_swallows_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing leaves a callback of the garbage collector, and Hypothesis has one."""

    class Callback:
        def __del__(self) -> None:
            job._leave(signal.SIGTERM, None)

    def collect() -> None:
        Callback()
        time.sleep(10)

    monkeypatch.setattr(job._Terminated, "came", False)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGALRM)}
    job._obey_signals()
    try:
        with pytest.raises(job._Terminated):
            collect()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_leaving_ends_a_job_in_the_middle_of_a_slice() -> None:
    with JobProcesses(1, setup("torch_sdpa")) as jobs:
        jobs.start(0, Slice(backend="torch_sdpa", index=0, seed=1, examples=100_000))
        assert jobs.next_message(60) is not None
        (process,) = jobs._processes
    assert process._process.returncode is not None


@pytest.fixture
def _deaf(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Jobs that no signal ends, as if they were in a driver that hangs. They are ended after the test."""
    held: list[left_behind.LeftProcess] = []
    kill = left_behind.kill
    monkeypatch.setattr(left_behind, "kill", held.append)
    monkeypatch.setattr(left_behind, "_noted", set())
    monkeypatch.setattr(subprocess.Popen, "terminate", lambda _: None)
    monkeypatch.setattr(jobs_module, "SECONDS_TO_LEAVE", 0.1)
    monkeypatch.setattr(jobs_module, "SECONDS_TO_DIE", 0.1)
    yield
    for process in held:
        kill(process)


@pytest.mark.usefixtures("_deaf")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_job_that_cannot_be_killed_is_left_behind_and_named() -> None:
    with JobProcesses(1, setup("torch_sdpa")) as jobs:
        (process,) = jobs._processes
        # More than the pipe holds, for a job that does not read it.
        os.kill(process._process.pid, signal.SIGSTOP)
        process.send(Slice(backend="torch_sdpa" * 100_000, index=0, seed=1, examples=5))
    assert str(process._process.pid) in left_behind.words()


def test_nothing_of_a_job_remains_in_its_session() -> None:
    with JobProcesses(1, setup("torch_sdpa")) as jobs:
        jobs.start(0, Slice(backend="torch_sdpa", index=0, seed=1, examples=100_000))
        assert jobs.next_message(60) is not None
        (process,) = jobs._processes
        session = left_behind.of_session(process._process.pid)
        # The job, its nursery, and workers.
        assert len(session) > 2
        os.kill(process._process.pid, signal.SIGSTOP)
    assert left_behind.of_session(process._process.pid) == []
    assert left_behind.words() == ""
