"""The way to a kernel: on record before it runs, checked after it, and recorded while a graph captures."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from recorder import Recorder

from attnfuzz.harness.inside import launcher as launcher_module
from attnfuzz.harness.inside.launcher import JournalingLauncher, Launched, LaunchError, Stopwatch, tensors_of
from attnfuzz.harness.inside.plan_digest import PlanDigest
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.memory.seal import Seal
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers.journal import LaunchRecord
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.interface.transfers import Pending


def add_into(*, out: torch.Tensor, x: torch.Tensor, amount: int) -> None:
    out.copy_(x + amount)


ADD = Op("add", add_into, frozenset({"out"}))


def ignore(_: bytes) -> None:
    pass


def test_a_launch_is_on_record_before_it_runs(memory: GuardedMemory, tensors: dict[str, Any]) -> None:
    entries: list[bytes] = []

    def crash(**_: object) -> None:
        record = LaunchRecord.decode(entries[-1])
        assert (record.step, record.mode, record.kernel) == (3, "decode", "crash")
        assert record.scalars == {"amount": 5}
        assert [allocation.name for allocation in record.tensors] == ["x", "out"]
        raise RuntimeError("gone")

    launcher = JournalingLauncher(memory, entries.append)
    launcher.begin_step(3, "decode")
    with pytest.raises(RuntimeError, match="gone") as caught:
        launcher.launch(Op("crash", crash, frozenset({"out"})), amount=5, **tensors)
    assert launcher.kernel == "crash"
    assert launcher.raised is caught.value
    launcher.begin_step(4, "decode")
    assert launcher.kernel == ""
    assert launcher.raised is None


def test_the_line_of_an_engine_is_on_record_with_its_kernel(memory: GuardedMemory, tensors: dict[str, Any]) -> None:
    entries: list[bytes] = []
    launcher = JournalingLauncher(memory, entries.append)
    launcher.begin_step(0, "decode")
    launcher.reached_by("planned")
    launcher.called_from("called at a.py:1")
    launcher.launch(Op("plan", lambda **_: None, frozenset()))
    launcher.called_from("called at a.py:2")
    launcher.launch(ADD, amount=5, **tensors)
    assert [LaunchRecord.decode(each).way for each in entries if each] == [
        "planned; called at a.py:1",
        "planned; called at a.py:2",
    ]
    launcher.called_from("called at a.py:3")
    launcher.launch(replace(ADD, name="add again"), amount=5, **tensors)
    of = launcher.ways()
    launcher.begin_step(1, "decode")
    assert of("plan") == "planned; called at a.py:1"
    # An output is that of both.
    assert of("add") == "planned; called at a.py:2; add again called at a.py:3"
    assert of("another") == "planned"
    assert launcher.ways()("add") == ""


def test_a_plan_of_the_next_batch_does_not_count_as_the_answering_kernel(
    memory: GuardedMemory, tensors: dict[str, Any]
) -> None:
    plan = Op("plan", lambda **_: None, frozenset(), plans=True)
    launcher = JournalingLauncher(memory, ignore)
    launcher.begin_step(0, "decode")
    launcher.launch(plan)
    assert launcher.answering == "plan"
    launcher.launch(ADD, amount=5, **tensors)
    launcher.launch(plan)
    assert (launcher.kernel, launcher.answering) == ("plan", "add")


def test_a_changed_input_is_observed_and_an_output_is_not(memory: GuardedMemory, tensors: dict[str, Any]) -> None:
    def spoil(*, out: torch.Tensor, x: torch.Tensor) -> None:
        out.fill_(1)
        x[1] = 7

    launcher = JournalingLauncher(memory, ignore)
    launcher.launch(Op("spoil", spoil, frozenset({"out"})), **tensors)
    (observation,) = launcher.observations
    assert (observation.kind, observation.place) == (Kind.INPUT_MUTATED, "x")
    assert observation.message == "spoil changed its input x, first at element 1"


def test_an_input_may_change_if_another_part_of_its_tensor_may_be_written(memory: GuardedMemory) -> None:
    fused = memory.copy("qkv", torch.zeros(4, 8))
    launcher = JournalingLauncher(memory, ignore)
    spoil = Op("spoil", lambda **arguments: arguments["query"].fill_(1), frozenset({"key"}))
    launcher.launch(spoil, query=fused[:, :4], key=fused[:, 4:])
    assert launcher.observations == []


def test_a_kernel_gets_the_same_object_for_the_same_tensor_and_another_if_it_changed_it(
    memory: GuardedMemory, tensors: dict[str, Any]
) -> None:
    given: list[torch.Tensor] = []

    def keep(*, pair: tuple[torch.Tensor, list[torch.Tensor]]) -> None:
        given.append(pair[1][0])

    launcher = JournalingLauncher(memory, ignore)
    launcher.begin_step(0, "decode")
    op, x = Op("keep", keep, frozenset()), tensors["x"]
    launcher.launch(op, pair=(x, [x]))
    launcher.launch(op, pair=(x, [x]))
    given[0].unsqueeze_(0)
    launcher.launch(op, pair=(x, [x]))
    first, second, third = given
    assert first is second
    assert len({id(x), id(first), id(third)}) == 3
    assert (third.data_ptr(), third.shape) == (x.data_ptr(), x.shape)


def test_a_replay_has_frozen_scalars_and_live_tensors(memory: GuardedMemory, tensors: dict[str, Any]) -> None:
    launcher = JournalingLauncher(memory, ignore)
    amount = 1
    with launcher.capture() as graph:
        assert launcher.launch(ADD, amount=amount, **tensors) is None
    assert tensors["out"].tolist() == [0, 0]
    amount = 100
    tensors["x"].copy_(torch.tensor([10, 20]))
    graph.replay()
    assert tensors["out"].tolist() == [11, 21]
    assert launcher.kernel == "add"


def test_a_capture_that_fails_records_no_further(memory: GuardedMemory, tensors: dict[str, Any]) -> None:
    launcher = JournalingLauncher(memory, ignore)
    with pytest.raises(KeyError), launcher.capture():
        raise KeyError
    launcher.launch(ADD, amount=1, **tensors)
    assert tensors["out"].tolist() == [2, 3]


def test_a_call_that_cannot_be_journaled_is_not_launched(memory: GuardedMemory, tensors: dict[str, Any]) -> None:
    def full(_: bytes) -> None:
        raise OSError("no space")

    launcher = JournalingLauncher(memory, full)
    with pytest.raises(LaunchError, match="the launch of add could not be journaled: no space"):
        launcher.launch(ADD, amount=1, **tensors)
    assert tensors["out"].tolist() == [0, 0]
    assert launcher.raised is None


def test_each_tensor_of_a_launch_is_known_by_its_argument() -> None:
    a, b, c = (torch.zeros(1) for _ in range(3))
    found = list(tensors_of({"x": (a, [b]), "amount": 1, "out": c}))
    assert [name for name, _ in found] == ["x", "x", "out"]
    assert all(mine is theirs for (_, mine), theirs in zip(found, (a, b, c), strict=True))


def test_only_the_tensors_that_a_kernel_is_given_are_on_record(memory: GuardedMemory, tensors: dict[str, Any]) -> None:
    memory.tensor("bystander", (4,), torch.float32)
    written: list[bytes] = []
    idle = Op("idle", lambda **_: None, frozenset({"out"}))
    JournalingLauncher(memory, written.append).launch(idle, nothing=torch.empty(0, 3), **tensors)
    assert [(each.name, each.nbytes > 0) for each in LaunchRecord.decode(written[-1]).tensors] == [
        ("nothing", False),
        ("x", True),
        ("out", True),
    ]


class LoggedStopwatch(Stopwatch):
    """Keeps in `log` what it is sent, and takes 2 seconds for any wait, or raises `error` at its end."""

    def __init__(self, log: list[str], error: Exception | None = None, *, at_once: bool = True) -> None:
        self._log, self._error = log, error
        self.at_once = at_once
        self.sent: list[int | None] = []

    def start(self) -> None:
        self._log.append("start")

    def stop(self) -> None:
        self._log.append("stop")

    def wait(self, tell: Callable[[int | None], None]) -> float:
        self._log.append("waited for")
        for each in self.sent:
            tell(each)
        if self._error is not None:
            raise self._error
        return 2.0


class LoggedSeal(Seal):
    """Keeps in `log` when it is compared, when that is waited for by itself, and when its result is read."""

    def __init__(self, log: list[str], error: Exception | None = None) -> None:
        self._log, self._error = log, error

    def broken(self) -> Pending[list[tuple[str, int]]]:
        self._log.append("compare")
        if self._error is not None:
            raise self._error
        return Pending(lambda: self._log.append("waited for the seal"), self._read)

    def _read(self) -> list[tuple[str, int]]:
        self._log.append("compared")
        return [("x", 1)]


def test_a_device_is_waited_for_once_for_a_launch_and_its_seal(
    memory: GuardedMemory, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setattr(memory, "seal", lambda *_, **__: LoggedSeal(log))
    launcher = JournalingLauncher(memory, lambda _: log.append("on record"), stopwatch=LoggedStopwatch(log))
    launcher.launch(Op("note", lambda **_: log.append("launched"), frozenset({"out"})), **tensors)
    assert log == ["on record", "start", "launched", "stop", "compare", "waited for", "compared"]
    assert launcher.kernel_seconds == 2.0
    assert [found.place for found in launcher.observations] == ["x"]


def test_a_device_that_lags_is_waited_for_once_for_many_launches(
    memory: GuardedMemory, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setattr(memory, "seal", lambda *_, **__: LoggedSeal(log))
    launcher = JournalingLauncher(memory, ignore, stopwatch=LoggedStopwatch(log, at_once=False))
    launcher.begin_step(3, "decode")
    for name in ("first", "second"):
        launcher.launch(Op(name, lambda **_: None, frozenset({"out"})), **tensors)
    assert log == ["start", "stop", "compare"] * 2
    assert launcher.observations == []
    launcher.see_through()
    assert log[6:] == ["waited for", "compared", "compared"]
    assert [(found.step, found.kernel, found.call) for found in launcher.observations] == [
        (3, "first", 0),
        (3, "second", 1),
    ]
    launcher.see_through()
    assert len(launcher.observations) == 2


def test_a_device_that_lags_is_waited_for_when_seals_hold_much(
    memory: GuardedMemory, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setattr(launcher_module, "_MOST_SEALED", 5 * tensors["x"].nbytes // 2)
    launcher = JournalingLauncher(memory, ignore, stopwatch=LoggedStopwatch(log, at_once=False))
    for _ in range(6):
        launcher.launch(ADD, amount=1, **tensors)
    assert log.count("waited for") == 2


@pytest.mark.parametrize(("at", "kernel"), [(0, "first"), (1, "second"), (None, None)])
def test_the_launch_that_a_device_is_at_is_on_record_in_the_end(
    memory: GuardedMemory, tensors: dict[str, Any], at: int | None, kernel: str | None
) -> None:
    entries: list[bytes] = []
    stopwatch = LoggedStopwatch([], at_once=False)
    launcher = JournalingLauncher(memory, entries.append, stopwatch=stopwatch)
    for name in ("first", "second", "third"):
        launcher.launch(Op(name, lambda **_: None, frozenset({"out"})), **tensors)
    assert LaunchRecord.decode(entries[-1]).kernel == "third"
    stopwatch.sent = [at]
    launcher.see_through()
    assert (LaunchRecord.decode(entries[-1]).kernel if entries[-1] else None) == kernel


def test_a_device_is_waited_for_also_if_the_launch_raises(memory: GuardedMemory, tensors: dict[str, Any]) -> None:
    log: list[str] = []

    def reject(**_: object) -> None:
        raise ValueError("no such head dim")

    launcher = JournalingLauncher(memory, ignore, stopwatch=LoggedStopwatch(log))
    with pytest.raises(ValueError, match="no such head dim") as caught:
        launcher.launch(Op("reject", reject, frozenset()), **tensors)
    assert launcher.raised is caught.value
    assert log == ["start", "stop", "waited for"]


def test_a_device_that_can_compare_nothing_any_more_is_waited_for(
    memory: GuardedMemory, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    broken = RuntimeError("CUDA error: an illegal memory access was encountered")
    monkeypatch.setattr(memory, "seal", lambda *_, **__: LoggedSeal(log, broken))
    # On a GPU there is no return from this wait.
    launcher = JournalingLauncher(memory, ignore, stopwatch=LoggedStopwatch(log))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        launcher.launch(ADD, amount=1, **tensors)
    assert log == ["start", "stop", "compare", "waited for"]


def test_an_error_that_waiting_brings_up_is_no_rejection(memory: GuardedMemory, tensors: dict[str, Any]) -> None:
    error = RuntimeError("CUDA error: invalid configuration")
    launcher = JournalingLauncher(memory, ignore, stopwatch=LoggedStopwatch([], error))
    with pytest.raises(RuntimeError, match="invalid configuration"):
        launcher.launch(ADD, amount=1, **tensors)
    assert launcher.raised is None


def test_launches_that_run_as_one_share_a_record_and_a_seal(memory: GuardedMemory, tensors: dict[str, Any]) -> None:
    entries: list[bytes] = []
    end = memory.copy("end", torch.tensor([0, 0]))
    x, out = tensors["x"], tensors["out"]
    launches = [
        Launched(ADD, {"out": out, "x": x, "amount": 1}),
        Launched(Op("next", add_into, frozenset({"out"})), {"out": end, "x": out, "amount": 1}),
    ]

    def work() -> None:
        out.fill_(1)  # an input of the second, but an output of the first
        x[1] = 7

    launcher = JournalingLauncher(memory, entries.append)
    launcher.begin_step(1, "decode")
    launcher.run_sealed(launches, work)
    record = LaunchRecord.decode(entries[-1])
    assert (record.kernel, record.call) == ("add + next", -1)
    assert [tensor.name for tensor in record.tensors] == ["out", "x", "end"]
    assert [(seen.place, seen.kernel, seen.call) for seen in launcher.observations] == [("x", "add + next", -1)]


def test_a_reported_breach_is_reported_with_the_launch_that_follows_and_no_other(
    memory: GuardedMemory, tensors: dict[str, Any]
) -> None:
    entries: list[bytes] = []
    launcher = JournalingLauncher(memory, entries.append)
    launcher.begin_step(0, "decode")
    launcher.launch(ADD, **tensors, amount=1)
    launcher.report("x", "x has 2 rows for 3 requests")
    launcher.launch(replace(ADD, own=True), **tensors, amount=1)
    launcher.launch(ADD, **tensors, amount=1)
    launcher.launch(ADD, **tensors, amount=1)
    assert [LaunchRecord.decode(entry).broken for entry in entries] == [(), (), ("x has 2 rows for 3 requests",), ()]
    (broken,) = launcher.broken
    assert (broken.kind, broken.place, broken.kernel, broken.call) == (Kind.CONTRACT_BROKEN, "x", "add", 2)
    assert broken.message == "a call of add breaks its contract: x has 2 rows for 3 requests"
    launcher.begin_step(1, "decode")
    assert launcher.broken == []


def test_launches_of_a_backends_own_code_are_in_its_plan_and_in_no_script(
    memory: GuardedMemory, tensors: dict[str, Any]
) -> None:
    def digest(amount: int) -> str:
        made = PlanDigest()
        launcher = JournalingLauncher(memory, lambda _: None, made)
        tensors["out"].zero_()
        launcher.launch(replace(ADD, own=True), **tensors, amount=amount)
        return made.hexdigest()

    assert digest(1) == digest(1) != digest(2)
    recorder = Recorder()
    JournalingLauncher(memory, lambda _: None, recorder).launch(replace(ADD, own=True), **tensors, amount=1)
    assert recorder.launches == []


def test_a_launch_that_fails_unnoticed_is_observed_and_only_that(
    memory: GuardedMemory, tensors: dict[str, Any]
) -> None:
    """A call's own report, and one that was left before it, are not."""
    left = [""]

    def failed_launch() -> str:
        error, left[0] = left[0], ""
        return error

    def fail(*, sent: bool, **_: object) -> None:
        left[0] = "cudaErrorInvalidConfiguration: invalid configuration argument"
        if sent:
            raise RuntimeError("launch failed")

    launcher = JournalingLauncher(memory, ignore, failed_launch=failed_launch)
    launcher.begin_step(2, "decode")
    fails = Op("fails", fail, frozenset({"out"}))
    with pytest.raises(RuntimeError, match="launch failed"):
        launcher.launch(fails, sent=True, **tensors)
    launcher.launch(ADD, amount=1, **tensors)
    assert launcher.observations == []
    launcher.launch(fails, sent=False, **tensors)
    (found,) = launcher.observations
    assert (found.kind, found.place, found.kernel) == (Kind.RAISED, "cudaErrorInvalidConfiguration", "fails")
    assert (found.step, found.call) == (2, 2)
    assert "fails did not report the error of its own launch, cudaErrorInvalidConfiguration: inv" in found.message
