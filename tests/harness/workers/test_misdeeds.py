"""What a request leaves behind, and what becomes of it. Real workers: these are processes and descriptors."""

import resource
import signal
import time
from pathlib import Path

import pytest

from attnfuzz.harness.workers.postmortem import Death
from attnfuzz.harness.workers.supervisor import Workers


def reply(workers: Workers, request: str) -> str:
    answer = workers.run(request.encode(), timeout=30)
    assert isinstance(answer, bytes), answer
    return answer.decode()


def pid_of(workers: Workers) -> int:
    return int(reply(workers, "who").split()[0])


def goes(pid: int) -> bool:
    """Whether a process ends soon; a zombie has ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def shared_memory() -> int:
    """Bytes in files that are in memory, of the whole machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Shmem:"))


def test_the_death_of_a_worker_is_seen_though_a_child_has_its_channel(workers: Workers) -> None:
    before = time.monotonic()
    left = workers.run(b"fork abort", timeout=30)
    assert isinstance(left, Death)
    assert (left.signal, left.hang) == (signal.SIGABRT, False)
    assert time.monotonic() - before < 25
    assert goes(int(left.output))


def test_a_worker_that_stops_itself_hangs(workers: Workers) -> None:
    left = workers.run(f"kill {signal.SIGSTOP.value}".encode(), timeout=0.5)
    assert isinstance(left, Death)
    assert left.hang


def test_children_of_a_worker_end_with_it(workers: Workers) -> None:
    child = int(reply(workers, "fork"))
    assert not isinstance(workers.run(b"who", timeout=30), Death)
    assert Path(f"/proc/{child}").exists()
    workers.renew()
    assert goes(child)


@pytest.mark.slow
def test_children_of_a_worker_end_with_the_nursery() -> None:
    with Workers("deadly_handlers:obey") as own:
        child = int(reply(own, "fork"))
    assert goes(child)


def test_a_worker_in_which_a_thread_computes_is_replaced_and_one_in_which_it_waits_is_not(workers: Workers) -> None:
    restarts, before = workers.restarts, pid_of(workers)
    assert reply(workers, "wait").split() == [str(before)]
    assert pid_of(workers) == before
    reply(workers, "compute")
    # A busy machine may not run the thread while the worker looks, which it does after each request.
    assert any(pid_of(workers) != before for _ in range(50))
    assert workers.restarts == restarts


def test_a_flood_of_output_costs_no_memory_and_its_end_is_kept(workers: Workers) -> None:
    pid_of(workers)
    files, own = shared_memory(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    left = workers.run(b"flood 512", timeout=60)
    assert isinstance(left, Death)
    assert left.signal == signal.SIGABRT
    assert left.output.endswith("the end")
    assert len(left.output) <= 4096
    # Others use the machine as well.
    assert shared_memory() - files < 256 << 20
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) - own < 16 << 20
