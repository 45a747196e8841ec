"""When a silent worker counts as hung: with a clock and a /proc of the test's own."""

import os
from pathlib import Path

import pytest

from attnfuzz.harness.workers.patience import Patience, Silence

PATIENCE = Patience(least=5.0, most=30.0, total=600.0)
TICKS = os.sysconf("SC_CLK_TCK")
WORKER, COMPILER = 7, 8


class Machine:
    """A worker of two threads, and a compiler that it started. `pass_time` changes what /proc says of them."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.now = 100.0
        self.faults = 0
        self.compiled = 0.0
        self.waited = {WORKER: 0.0, WORKER + 100: 0.0}
        self.pass_time(0.0)

    def pass_time(self, seconds: float, *, waiting: float = 0.0, faults: float = 0.0, compiling: float = 0.0) -> None:
        self.now += seconds
        self.faults += int(seconds * faults)
        self.compiled += seconds * compiling
        self.waited[WORKER + 100] += seconds * waiting
        for thread, waited in self.waited.items():
            task = self.proc / str(WORKER) / "task" / str(thread)
            task.mkdir(parents=True, exist_ok=True)
            (task / "schedstat").write_text(f"1 {int(waited * 1e9)} 3\n")
        self._write(WORKER, faults=self.faults, ticks=0)
        self._write(COMPILER, faults=0, ticks=int(self.compiled * TICKS))

    def _write(self, pid: int, *, faults: int, ticks: int) -> None:
        (self.proc / str(pid)).mkdir(exist_ok=True)
        fields = ["R", "1", str(WORKER), "1", "0", "0", "0", str(faults), "0", "0", "0", str(ticks), "0", "0", "0"]
        (self.proc / str(pid) / "stat").write_text(f"{pid} (a ) name) {' '.join(fields + ['0'] * 30)}\n")

    def silence(self) -> Silence:
        return Silence(WORKER, PATIENCE, clock=lambda: self.now, proc=self.proc)

    def hangs_after(self, silence: Silence, **each_second: float) -> int:
        """The seconds after which the silence counts as a hang."""
        for second in range(1, 1000):
            self.pass_time(1.0, **each_second)
            if silence.is_hang():
                return second
        raise AssertionError("it never hangs")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_silent_worker_hangs_after_the_least_time(machine: Machine) -> None:
    silence = machine.silence()
    assert machine.hangs_after(silence) == silence.limit == 5.0


def test_a_loop_with_few_page_faults_hangs_as_early(machine: Machine) -> None:
    assert machine.hangs_after(machine.silence(), faults=20, compiling=0.05) == 5


def test_a_worker_that_waits_for_a_processor_is_given_more_time(machine: Machine) -> None:
    assert machine.hangs_after(machine.silence(), waiting=0.75) == pytest.approx(20, abs=4)


def test_a_worker_that_never_gets_a_processor_hangs_in_the_end(machine: Machine) -> None:
    assert machine.hangs_after(machine.silence(), waiting=1.0) == 120


@pytest.mark.parametrize("sign", [{"faults": 2000.0}, {"compiling": 0.9}])
def test_a_worker_that_seems_to_compile_is_given_more_time(machine: Machine, sign: dict[str, float]) -> None:
    silence = machine.silence()
    assert machine.hangs_after(silence, **sign) == silence.limit == 30.0


def test_a_hang_after_a_compilation_is_noticed_as_early_as_another(machine: Machine) -> None:
    silence = machine.silence()
    for _ in range(10):
        machine.pass_time(1.0, compiling=0.9)
        assert not silence.is_hang()
    assert machine.hangs_after(silence) == 5
    assert silence.limit == 15.0


@pytest.mark.slow
def test_a_launch_ends_a_silence_but_not_a_request_that_never_ends(machine: Machine) -> None:
    silence = machine.silence()
    for _ in range(199):
        machine.pass_time(3.0)
        silence.begin_again()
        assert not silence.is_hang()
    machine.pass_time(3.0)
    silence.begin_again()
    assert silence.is_hang()
    assert silence.limit == PATIENCE.total


def test_looks_are_frequent_enough_for_the_limit(machine: Machine) -> None:
    silence = machine.silence()
    assert silence.until_look == 1.0
    machine.pass_time(4.75)
    assert not silence.is_hang()
    assert silence.until_look == pytest.approx(0.25)


def test_a_worker_that_has_ended_has_no_signs(tmp_path: Path) -> None:
    now = iter([0.0, 0.0, 1.0, 2.0, 6.0])
    silence = Silence(WORKER, PATIENCE, clock=lambda: next(now), proc=tmp_path)
    assert [silence.is_hang() for _ in range(3)] == [False, False, True]
