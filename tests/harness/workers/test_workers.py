"""Workers that die, hang, raise and print, and what their parent makes of it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deadly_handlers
import msgspec
import pytest
from forked_python import started_processes

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers import supervisor
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.lifeline import Lifeline, NurseryError
from attnfuzz.harness.workers.nursery import Fork
from attnfuzz.harness.workers.postmortem import Death, explain
from attnfuzz.harness.workers.supervisor import HandlerError, Worker, Workers


def reply(workers: Workers, request: str, timeout: float = 30) -> str:
    answer = workers.run(request.encode(), timeout=timeout)
    assert isinstance(answer, bytes), answer
    return answer.decode()


def death(workers: Workers, request: str, timeout: float = 30) -> Death:
    answer = workers.run(request.encode(), timeout=timeout)
    assert isinstance(answer, Death), answer
    return answer


def pid_of(workers: Workers) -> int:
    return int(reply(workers, "who").split()[0])


PATIENCE = 60.0
"""Seconds: how long a busy machine may take to end a process."""


def running(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def goes(pid: int) -> bool:
    return _comes(lambda: not running(pid))


def vanishes(pid: int) -> bool:
    """Whether a process goes and is waited for by its parent."""
    return _comes(lambda: not Path(f"/proc/{pid}").exists())


def _comes(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.slow
def test_one_worker_answers_request_after_request(workers: Workers) -> None:
    assert len({pid_of(workers) for _ in range(20)}) == 1
    assert reply(workers, "echo " + "x" * 300_000).endswith("x" * 300_000)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTERM", "SIGKILL"])
def test_a_signal_is_reported_by_its_name(workers: Workers, name: str) -> None:
    number = getattr(signal, name)
    left = death(workers, f"kill {number.value}")
    assert (left.signal, left.exit_code, left.hang) == (number, None, False)
    seen = explain(left)
    assert name in seen.message
    illegal = name in ("SIGSEGV", "SIGBUS")
    assert seen.kind is (Kind.ILLEGAL_ACCESS if illegal else Kind.WORKER_DIED)
    assert seen.place == ("unknown address" if illegal else left.cause)
    assert reply(workers, "echo next").endswith("next")


def test_an_abort_comes_with_its_last_words(workers: Workers) -> None:
    left = death(workers, "abort")
    assert left.output == "terminate called after throwing an instance of 'Oops'"
    assert "instance of 'Oops'" in explain(left).message


def test_output_of_earlier_requests_is_not_taken_for_last_words(workers: Workers) -> None:
    reply(workers, "print an earlier request")
    assert death(workers, "abort").output == "terminate called after throwing an instance of 'Oops'"


def test_output_never_reaches_the_parents_terminal(workers: Workers, capfd: pytest.CaptureFixture[str]) -> None:
    reply(workers, "print loud")
    death(workers, "abort")
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_exits_is_reported_like_any_other_death(workers: Workers) -> None:
    before = pid_of(workers)
    reply(workers, "print loud")
    left = death(workers, "go 7")
    assert (left.signal, left.exit_code, left.hang, left.output) == (None, 7, False, "")
    assert pid_of(workers) != before
    assert vanishes(before)


def test_the_parent_does_not_wait_for_a_worker_that_announced_its_exit(workers: Workers) -> None:
    before = pid_of(workers)
    left = death(workers, "linger 7")
    assert running(before)
    assert left.exit_code == 7
    assert pid_of(workers) != before
    os.kill(before, signal.SIGKILL)
    assert vanishes(before)


def test_a_hang_is_killed_and_reported(workers: Workers) -> None:
    left = death(workers, "sleep 60", timeout=0.2)
    assert left.hang
    assert not left.killed_from_outside
    seen = explain(left)
    assert seen.kind is Kind.HANG
    assert seen.message.startswith("no reply within 0.2 s, outside of any launch\nwhere it hung:\nPython stack")
    assert reply(workers, "echo next").endswith("next")


@pytest.mark.slow
def test_a_request_that_goes_on_launching_does_not_hang(workers: Workers) -> None:
    assert reply(workers, "launch 2", timeout=1.2)


def test_a_request_that_launches_for_ever_does(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_PATIENCE", 1.5)
    assert death(workers, "launch 60", timeout=0.4).hang


def test_an_exception_in_the_handler_is_the_harnesss_own_and_not_a_death(workers: Workers) -> None:
    worker = pid_of(workers)
    with pytest.raises(HandlerError, match="KeyError: 'planted'"):
        workers.run(b"raise planted", timeout=30)
    with pytest.raises(HandlerError, match="SystemExit: planted"):
        workers.run(b"exit planted", timeout=30)
    assert pid_of(workers) == worker


def test_the_journal_tells_of_this_request_only(workers: Workers) -> None:
    reply(workers, "journal an earlier request")
    assert death(workers, "leave 1").entry == b""


@pytest.mark.parametrize(("recorder", "why"), [(False, "it needs a C++ compiler"), (True, "ignored, blocked or")])
def test_a_journal_in_another_format_still_gives_an_observation(why: str, *, recorder: bool) -> None:
    left = Death(
        signal=signal.SIGSEGV,
        exit_code=None,
        hang=False,
        seconds=0.1,
        fault=None,
        entry=b"not JSON",
        output="",
        recorder=recorder,
    )
    seen = explain(left)
    assert (seen.kind, seen.step, seen.kernel) == (Kind.ILLEGAL_ACCESS, -1, "")
    assert why in seen.message


def test_thirty_deaths_in_a_row_are_thirty_deaths(workers: Workers) -> None:
    before = workers.restarts
    assert [death(workers, f"leave {code}").exit_code for code in range(30)] == list(range(30))
    assert workers.restarts == before + 30


def test_renew_gives_a_worker_that_has_run_nothing(workers: Workers) -> None:
    before = pid_of(workers)
    workers.renew()
    after = pid_of(workers)
    assert after != before
    assert goes(before)


def test_a_worker_killed_while_it_was_idle_costs_nothing(workers: Workers) -> None:
    idle = pid_of(workers)
    os.kill(idle, signal.SIGKILL)
    assert goes(idle)
    assert pid_of(workers) != idle


def test_a_worker_killed_before_it_was_ready_costs_nothing(workers: Workers) -> None:
    reply(workers, "echo first")
    stillborn = Worker(workers._nursery())
    stillborn._channel.close()
    stillborn._channel, remote = socket.socketpair()
    remote.close()
    workers._team.appendleft(stillborn)
    assert reply(workers, "echo next").endswith("next")


@pytest.mark.slow
def test_a_nursery_killed_from_outside_is_replaced(workers: Workers) -> None:
    worker = pid_of(workers)
    os.kill(workers._nursery()._process.pid, signal.SIGKILL)
    assert goes(worker)
    assert pid_of(workers) != worker


@pytest.mark.usefixtures("started")
@pytest.mark.slow
def test_a_nursery_killed_while_it_starts_is_replaced() -> None:
    with Workers("deadly_handlers:obey") as own:
        for _ in range(3):
            nursery = own._nursery()._process
            nursery.kill()
            nursery.wait()
        assert reply(own, "echo next").endswith("next")


class KilledBeforeTheOrder(Lifeline):
    """A nursery that is killed before its first order to fork."""

    def fork(self, channel: int, journal: int, output: int, arguments: Sequence[str] = ()) -> None:
        self._process.kill()
        self._process.wait()
        super().fork(channel, journal, output, arguments)


class KilledAfterTheOrder(Lifeline):
    """A nursery that is killed with its first order to fork unread."""

    def fork(self, channel: int, journal: int, output: int, arguments: Sequence[str] = ()) -> None:
        self._process.send_signal(signal.SIGSTOP)
        socket.send_fds(self._control, [msgspec.json.encode(Fork(arguments))], [channel, journal, output])
        self._process.kill()
        self._process.wait()


@pytest.mark.parametrize("doomed", [KilledBeforeTheOrder, KilledAfterTheOrder])
@pytest.mark.slow
def test_nurseries_that_are_all_killed_are_given_up(monkeypatch: pytest.MonkeyPatch, doomed: type[Lifeline]) -> None:
    # The system accepts an order for a killed nursery as long as any process has the other end of its socket.
    monkeypatch.setattr(supervisor, "Lifeline", doomed)
    with pytest.raises(NurseryError, match="last words"), Workers("deadly_handlers:obey") as workers:
        workers.run(b"", timeout=60)


def test_an_interrupted_request_does_not_answer_the_next(workers: Workers) -> None:
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    pid_of(workers)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            workers.run(b"sleep 0.3", timeout=30)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert reply(workers, "echo next").endswith("next")


def test_descriptors_and_memory_do_not_grow(workers: Workers) -> None:
    def resident(pid: int) -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def descriptors(pid: int) -> int:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())

    death(workers, "leave 1")
    nursery = workers._nursery()._process.pid
    worker = pid_of(workers)
    reply(workers, "print loud")
    mine, its = descriptors(os.getpid()), descriptors(nursery)
    memory = resident(worker)
    for _ in range(500):
        reply(workers, "print " + "x" * 10_000)
    assert resident(worker) - memory < 4 << 20
    memory = resident(os.getpid())
    for _ in range(30):
        death(workers, "leave 1")
    assert resident(os.getpid()) - memory < 4 << 20
    # One more for a worker that is ready.
    pid_of(workers)
    assert descriptors(os.getpid()) == mine
    # It holds three of the next worker for as long as the fork takes.
    assert descriptors(nursery) <= its + 3


def pid_in_a_fork(workers: Workers) -> int:
    """The process id of the worker that a forked process gets from the same Workers."""
    journal = Journal.create()
    child = os.fork()
    if child == 0:
        try:
            # What is forked in place of a nursery would be a child of the process that tests run in.
            with started_processes():
                journal.write(str(pid_of(workers)).encode())
            workers.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    pid = int(journal.read())
    journal.close()
    return pid


@pytest.mark.slow
def test_a_process_forked_before_the_first_request_gets_workers_of_its_own() -> None:
    with Workers("deadly_handlers:obey") as own:
        team = list(own._team)
        theirs = pid_in_a_fork(own)
        assert team == list(own._team)
        assert pid_of(own) != theirs


@pytest.mark.slow
def test_close_ends_everything() -> None:
    with Workers("deadly_handlers:obey", spares=2) as own:
        pids = [worker.pid for worker in [*own._team]] + [pid_of(own), own._nursery()._process.pid]
    assert all(goes(pid) for pid in pids)


@pytest.mark.slow
def test_nothing_outlives_a_parent_that_is_killed() -> None:
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from attnfuzz.harness.workers.supervisor import Workers\n"
        "workers = Workers('deadly_handlers:obey')\n"
        "print(workers.run(b'who', timeout=60).split()[0].decode(), workers._nursery()._process.pid, flush=True)\n"
        "workers.run(b'sleep 60', timeout=60)\n"
    )
    folder = str(Path(deadly_handlers.__file__).parent)
    with subprocess.Popen([sys.executable, "-c", script, folder], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(running(pid) for pid in pids)
        parent.kill()
    assert all(goes(pid) for pid in pids)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "hooks", "message"),
    [
        ("deadly_handlers:obey", {"preload": ["deadly_handlers:broken"]}, "the preload hook is broken"),
        (
            "deadly_handlers:obey",
            {"preload": ["deadly_handlers:aborting"]},
            r"killed by SIGABRT(.|\n)*terminate called: no such device(.|\n)*ModuleLevelObject$",
        ),
        (
            "deadly_handlers:obey",
            {"preload": ["deadly_handlers:threaded"]},
            "1 threads run after deadly_handlers:threaded, deadly_handlers:obey was loaded",
        ),
        ("deadly_handlers:nothing", {}, "has no attribute 'nothing'"),
        ("no_such_module:handler", {}, "No module named 'no_such_module'"),
        (
            "deadly_handlers:begun",
            {"begin": "deadly_handlers:begin_badly"},
            r"workers can't start:\n(.|\n)*there is no device here",
        ),
        ("deadly_handlers:begun", {"begin": "deadly_handlers:begin_deadly"}, "the driver gave up"),
        ("deadly_handlers:begun", {"begin": "deadly_handlers:no_such_hook"}, "has no attribute 'no_such_hook'"),
    ],
)
def test_workers_that_cannot_start_say_why(handler: str, hooks: dict[str, Any], message: str) -> None:
    def run_twice() -> None:
        with Workers(handler, **hooks) as own:
            with pytest.raises(NurseryError, match=message):
                own.run(b"", timeout=60)
            own.run(b"", timeout=60)

    # The nursery may be gone before the first fork is ordered: then it says so at once.
    with pytest.raises(NurseryError, match=message):
        run_twice()


def test_names_and_numbers_are_checked_at_the_door() -> None:
    with pytest.raises(ValueError, match="write module:function"):
        Workers("deadly_handlers")
    with pytest.raises(ValueError, match="at least 0"):
        Workers("deadly_handlers:obey", spares=-1)
