"""A device that runs behind the host: what shows, and what must not."""

import time
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from attnfuzz.harness.inside.late_device import StreamGate, late
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference import case_file
from attnfuzz.reference.case import Case, Pace, Workspace

pytestmark = pytest.mark.gpu

_RECORDED = Path(__file__).with_name("late_device")
"""Cases that failed in 1 to 4% of their runs, with 14 processes on one H200, and never with one."""


@pytest.fixture(scope="module")
def gate() -> StreamGate:
    return StreamGate()


def test_host_memory_that_is_reused_before_it_was_copied_shows(gate: StreamGate) -> None:
    staged, copied = torch.ones(4, pin_memory=True), torch.empty(4, device="cuda")
    with late(gate):
        copied.copy_(staged, non_blocking=True)
        staged.fill_(2)
    assert copied.tolist() == [2] * 4


def test_a_wait_inside_a_step_is_over_at_once(gate: StreamGate) -> None:
    value = torch.ones((), device="cuda")
    (value + 1).item()
    start = time.monotonic()
    with late(gate):
        found = [(value + n).item() for n in range(100)] + (value + 100).cpu().flatten().tolist()
    assert found == [1.0 + n for n in range(101)]
    # Each would take the 100 ms that the gate waits at most.
    assert time.monotonic() - start < 1


@pytest.mark.parametrize("name", ["illegal_access", "metamorphic_mismatch"])
def test_a_wrapper_that_is_dropped_with_its_plan_pending_fails_each_time_on_a_late_device(name: str) -> None:
    case = case_file.load(_RECORDED / f"{name}.json")
    assert isinstance(case, Case)
    # One process alone: what comes and goes with fourteen has to come each time.
    with Runner(["fa2_paged"]) as runner:
        late_ones = [runner.verdict(replace(case, pace=Pace.LATE)) for _ in range(5)]
        prompt = runner.verdict(case)
    assert all(map(_fails, late_ones))
    assert not _fails(prompt)


def test_a_wrapper_that_is_planned_again_with_its_plan_pending_fails_on_a_late_device() -> None:
    case = case_file.load(_RECORDED / "metamorphic_mismatch.json")
    assert isinstance(case, Case)
    kept = replace(case, workspace=Workspace.REUSED, relation=None)
    with Runner(["fa2_paged"]) as runner:
        assert _fails(runner.verdict(replace(kept, pace=Pace.LATE)))
        assert not _fails(runner.verdict(kept))


def _fails(verdict: Verdict) -> bool:
    return bool(verdict.failures)
