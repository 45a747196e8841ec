"""The worker's handling of a case: steps in order, each judged, and errors of the harness kept apart from findings."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from harness_cases import decode_case
from msgspec.structs import replace as replace_fields

from attnfuzz.harness.inside import execute, forwards
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.inside.forwards import with_broken
from attnfuzz.harness.inside.launcher import JournalingLauncher, LaunchError, Stopwatch
from attnfuzz.harness.inside.places import on_host, place_of
from attnfuzz.harness.memory.guarded import GuardedMemory, PlainMemory
from attnfuzz.harness.memory.slabs import OutOfMemory
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.building.library_cache import BuildFailed, NoCompiler
from attnfuzz.kernels.interface.backend import Bench, Output
from attnfuzz.kernels.libraries.torch_sdpa import SdpaBackend, SdpaSession
from attnfuzz.kernels.native import build
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.relation import Relation


def ignore(_: bytes) -> None:
    pass


def task(defective: str, defect: str, case: Case | None = None) -> Task:
    name = f"{defective}:{defect}"
    return Task(case=case or decode_case(name), backend=name)


def test_the_phases_of_a_run_are_timed(defective: str) -> None:
    verdict = Execution(task(defective, "NONE"), ignore).run()
    assert verdict.seconds.keys() == {"place", "kernel", "reference", "judge"}
    assert min(verdict.seconds.values()) > 0


def test_a_case_computes_the_same_without_guards(defective: str) -> None:
    guarded = Execution(task(defective, "NONE"), ignore).run()
    plain = Execution(task(defective, "NONE"), ignore, memory=PlainMemory(decode_case("x").outputs)).run()
    assert plain.margins == guarded.margins


def test_a_case_of_two_runs_is_run_once_by_a_writer_of_the_cache() -> None:
    writer = Path(__file__).parents[3] / "docs" / "examples" / "my_writer.py"
    case = decode_case(f"{writer}:MINE")
    geometry = replace_fields(case.geometry, kv_layout=KvLayout.NHD)
    case = replace_fields(case, geometry=geometry, relation=Relation.SAME_CALL)
    verdict = Execution(Task(case=case, backend=case.backend), ignore).run()
    assert (verdict.failures, verdict.unsupported) == ((), None)


@dataclass(frozen=True)
class _Server(SdpaBackend):
    """A backend that needs three forwards for each step."""

    def open(self, case: Case, bench: Bench) -> SdpaSession:
        return _ServerSession(case, bench, call_without_keys=False)


class _ServerSession(SdpaSession):
    forwards = 0

    def forward(self, index: int) -> Output:
        self.forwards += 1
        output = super().forward(index)
        if self.forwards == 3:
            output.out[0].fill_(9)
        return output

    def unfinished(self, index: int) -> bool:
        del index
        return self.forwards < 3


def test_every_forward_of_a_step_is_judged() -> None:
    case = decode_case("torch_sdpa", 5, padded=1)
    verdict = Execution(Task(case=case, backend="torch_sdpa"), ignore, backend=_Server()).run()
    assert [each.kind for each in verdict.failures] == [Kind.OUTPUT_MISMATCH]
    assert verdict.rows == 3 * Execution(Task(case=case, backend="torch_sdpa"), ignore).run().rows


def test_a_backend_runs_in_inference_mode_only_if_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def opened(_: SdpaBackend, case: Case, bench: Bench) -> SdpaSession:
        seen.append(torch.is_inference_mode_enabled())
        return SdpaSession(case, bench)

    monkeypatch.setattr(SdpaBackend, "open", opened)
    case = decode_case("torch_sdpa", 5, padded=1)
    Execution(Task(case=case, backend="torch_sdpa"), ignore).run()
    monkeypatch.delattr(SdpaBackend, "in_inference_mode")
    Execution(Task(case=case, backend="torch_sdpa"), ignore).run()
    assert seen == [True, False]


def test_a_task_is_answered_as_bytes(defective: str) -> None:
    journal = Journal.create()
    reply = execute.handle(msgspec.json.encode(task(defective, "NAN_ROW")), journal)
    assert msgspec.json.decode(reply, type=Verdict).failures[0].kind is Kind.NOT_FINITE
    assert journal.read() == b""
    journal.close()


def test_the_journal_is_empty_when_judging_begins(defective: str) -> None:
    entries: list[bytes] = []
    Execution(task(defective, "NONE"), entries.append).run()
    assert [bool(entry) for entry in entries] == [True, False]


def test_a_full_journal_is_no_finding(defective: str) -> None:
    def full(_: bytes) -> None:
        raise ValueError("too large")

    with pytest.raises(LaunchError):
        Execution(task(defective, "NONE"), full).run()


def test_want_of_guarded_memory_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def starve(*_: object) -> None:
        raise OutOfMemory("no address space")

    monkeypatch.setattr(SdpaSession, "forward", starve)
    case = decode_case("torch_sdpa", 5, padded=1)
    with pytest.raises(OutOfMemory):
        Execution(Task(case=case, backend="torch_sdpa"), ignore).run()


@pytest.mark.parametrize("error", [NoCompiler("no g++"), BuildFailed("no space")])
def test_warming_up_does_without_kernels_that_can_not_be_built(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    target = "compiler" if isinstance(error, NoCompiler) else "load"
    monkeypatch.setattr(build, target, fail)
    execute.warm()


class Lagging(Stopwatch):
    """Calls `wait` for each wait."""

    at_once = False

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self._wait = wait

    def wait(self, tell: Callable[[int | None], None]) -> float:
        self._wait()
        return super().wait(tell)


def on(monkeypatch: pytest.MonkeyPatch, wait: Callable[[], None]) -> None:
    """Have cases run on a device that is waited for, and whose memory may be taken by others."""

    def launcher(*arguments: Any) -> JournalingLauncher:
        return JournalingLauncher(*arguments, stopwatch=Lagging(wait))

    there = replace(place_of(Device.CPU), launcher=launcher, too_large=(OutOfMemory,))
    monkeypatch.setattr(execute, "place_of", lambda _: there)


def test_a_case_that_is_too_large_for_a_device_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    def starve(*_: object) -> None:
        raise OutOfMemory("80 GiB are taken\nby whom, and much more")

    on(monkeypatch, lambda: None)
    monkeypatch.setattr(SdpaSession, "forward", starve)
    case = decode_case("torch_sdpa", 5, padded=1)
    verdict = Execution(Task(case=case, backend="torch_sdpa"), ignore).run()
    assert (verdict.observations, verdict.unsupported) == ((), "80 GiB are taken")


def test_an_error_that_a_device_tells_late_is_the_backends(defective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []

    def wait() -> None:
        waits.append(1)
        if len(waits) == 2:
            raise RuntimeError("CUDA error: invalid argument")

    on(monkeypatch, wait)
    (found,) = Execution(task(defective, "NONE"), ignore).run().observations
    # The first was waited for after the session had been opened, the second after the step.
    assert (found.kind, found.step) == (Kind.RAISED, 0)
    assert found.message.startswith("RuntimeError: CUDA error: invalid argument\n")


def test_one_wait_is_for_the_output_of_a_step_and_for_its_damage(
    defective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            log.append(name)
            return function(*arguments)

        return call

    on(monkeypatch, lambda: log.append("waited for"))
    monkeypatch.setattr(forwards, "on_host", noted("output", on_host))
    monkeypatch.setattr(GuardedMemory, "damage", noted("damage", GuardedMemory.damage))
    Execution(task(defective, "NONE"), ignore).run()
    # The first is for the opened session, and the last for what the harness itself did meanwhile.
    assert log == ["waited for", "output", "damage", "waited for", "waited for"]


def test_nothing_of_a_backend_that_raised_is_still_running(defective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    on(monkeypatch, lambda: waits.append(1))
    verdict = Execution(task(defective, "PLANNER"), ignore).run()
    assert verdict.observations[0].kind is Kind.RAISED
    assert len(waits) == 3


def test_memory_goes_to_others_also_after_an_error_that_a_device_tells_last(
    defective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    def wait() -> None:
        log.append("waited for")
        if len(log) == 3:
            raise RuntimeError("CUDA error: invalid argument")

    on(monkeypatch, wait)
    monkeypatch.setattr(GuardedMemory, "release", lambda _: log.append("released"))
    with pytest.raises(RuntimeError, match="invalid argument"):
        Execution(task(defective, "NONE"), ignore).run()
    assert log == ["waited for"] * 3 + ["released"]


def test_a_device_is_waited_for_before_the_memory_of_a_case_goes_to_others(
    defective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []

    def fail(*_: object, **__: object) -> None:
        raise LaunchError("the journal is full")

    on(monkeypatch, lambda: log.append("waited for"))
    monkeypatch.setattr(GuardedMemory, "release", lambda _: log.append("released"))
    monkeypatch.setattr(execute, "judging", fail)
    with pytest.raises(LaunchError):
        Execution(task(defective, "NONE"), ignore).run()
    assert log[-2:] == ["waited for", "released"]


WRONG = Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="a row is wrong", kernel="decode")
BROKEN = Observation(
    kind=Kind.CONTRACT_BROKEN, place="seq_lens", message="a call of decode breaks its contract: ...", kernel="decode"
)


def test_an_unbroken_contract_adds_nothing_to_the_message() -> None:
    assert with_broken([WRONG], []) == [WRONG]


def test_a_failure_after_a_broken_contract_comes_first_and_names_the_breach() -> None:
    first, second = with_broken([WRONG], [BROKEN])
    assert first.kind is Kind.OUTPUT_MISMATCH
    assert first.message == "a row is wrong\nbefore that, a call of decode breaks its contract: ..."
    assert second is BROKEN


def test_a_breach_without_consequences_is_a_failure_and_reported_once() -> None:
    assert with_broken([], [BROKEN, BROKEN]) == [BROKEN]
