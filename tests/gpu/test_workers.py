"""Workers on a GPU: verdicts, faults that end a worker, and what the parent says of them."""

from collections.abc import Iterator
from pathlib import Path

import gpu_functions
import pytest
from harness_cases import decode_case

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.sandbox.teams import Team
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.kernels.cuda import nvcc, stray
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device

pytestmark = pytest.mark.gpu

FILE = Path(__file__).parents[1] / "fakes" / "gpu_functions.py"


def case_of(function: str, *kv_lens: int) -> Case:
    return decode_case(f"{FILE}:{function}", *kv_lens, padded=len(kv_lens) or 3)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    # A worker would compile it while its time runs.
    for source in (stray.SOURCE, gpu_functions.UNLAUNCHED_SOURCE):
        nvcc.build((source,))
    with Runner([f"{FILE}:ATTENDS"], timeout=20) as runner:
        yield runner


def seen(runner: Runner, function: str) -> Observation:
    return runner.verdict(case_of(function)).observations[0]


def passes(runner: Runner) -> bool:
    verdict = runner.verdict(case_of("ATTENDS"))
    return verdict.rows > 0 and not verdict.observations


@pytest.mark.parametrize("kv_lens", [(), (0,), (0, 5), (17, 0, 64), (300, 1)])
def test_correct_attention_passes(runner: Runner, kv_lens: tuple[int, ...]) -> None:
    verdict = runner.verdict(case_of("ATTENDS", *kv_lens))
    assert verdict.observations == ()
    assert verdict.rows > 0
    assert min(verdict.seconds.values()) > 0


def test_the_process_that_forks_has_no_cuda_context(runner: Runner) -> None:
    lifeline = runner._teams.of(Team(Device.CUDA))._lifeline
    assert lifeline is not None
    nursery = Path(f"/proc/{lifeline._process.pid}")
    # A thread called cuda... may run all the same: importing tvm_ffi was seen to start one, which opens no device.
    assert "/dev/nvidia" not in (nursery / "maps").read_text()


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("READS_FAR", Kind.ILLEGAL_ACCESS),
        ("WRITES_FAR", Kind.ILLEGAL_ACCESS),
        ("MISALIGNED", Kind.MISALIGNED),
        ("ASSERTS", Kind.WORKER_DIED),
    ],
)
def test_a_fault_ends_the_worker_and_the_next_case_passes(runner: Runner, function: str, kind: Kind) -> None:
    before = runner.restarts
    found = seen(runner, function)
    assert found.kind is kind
    assert (found.step, found.mode, found.kernel, found.call) == (0, "decode", function.lower(), 0)
    assert runner.restarts == before + 1
    assert passes(runner)


def test_a_fault_names_the_tensors_of_the_launch(runner: Runner) -> None:
    found = seen(runner, "READS_FAR")
    assert found.place == "unknown address"
    assert "query" in found.message
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in found.message


def test_a_fault_before_a_launch_is_not_blamed_on_the_launch(runner: Runner) -> None:
    found = seen(runner, "FAULTS_BEFORE")
    assert found.kind is Kind.ILLEGAL_ACCESS
    assert (found.step, found.kernel) == (-1, "")
    assert "outside of any launch" in found.message
    assert passes(runner)


@pytest.mark.parametrize(("function", "kind"), [("SECOND_FAULTS", Kind.ILLEGAL_ACCESS), ("SECOND_HANGS", Kind.HANG)])
def test_the_failing_launch_is_blamed_and_not_launches_queued_after_it(
    runner: Runner, function: str, kind: Kind
) -> None:
    found = seen(runner, function)
    assert (found.kind, found.kernel, found.call) == (kind, "second", 1)
    assert passes(runner)


def test_a_kernel_that_never_ends_is_a_hang(runner: Runner) -> None:
    assert seen(runner, "HANGS").kind is Kind.HANG
    assert passes(runner)


@pytest.mark.parametrize(
    ("function", "kind"),
    [("REJECTS", Kind.UNEXPECTED_REJECTION), ("CHANGES_ITS_INPUT", Kind.INPUT_MUTATED)],
)
def test_a_failure_that_leaves_the_context_intact_keeps_the_worker(runner: Runner, function: str, kind: Kind) -> None:
    before = runner.restarts
    assert seen(runner, function).kind is kind
    assert runner.restarts == before
    assert passes(runner)


def test_a_kernel_that_could_not_be_launched_is_reported_where_its_caller_does_not(runner: Runner) -> None:
    found = seen(runner, "UNLAUNCHED")
    assert (found.kind, found.place, found.kernel) == (Kind.RAISED, "cudaErrorInvalidValue", "unlaunched")
    assert "did not report the error of its own launch" in found.message
    assert passes(runner)


def test_out_of_memory_is_unsupported_and_no_failure(runner: Runner) -> None:
    verdict = runner.verdict(case_of("TAKES_TOO_MUCH"))
    assert verdict.observations == ()
    assert verdict.unsupported is not None
    assert "memory" in verdict.unsupported
    assert passes(runner)


def test_ten_deaths_in_a_row_are_ten_deaths(runner: Runner) -> None:
    assert {seen(runner, "READS_FAR").kind for _ in range(10)} == {Kind.ILLEGAL_ACCESS}
    assert passes(runner)


def test_the_calls_of_a_run_can_be_traced_and_run_again(runner: Runner) -> None:
    verdict, calls = runner.trace(case_of("ATTENDS"))
    assert verdict.observations == ()
    assert calls is not None
    assert calls.answer is not None
    again = runner.verdict(calls)
    assert again.observations == ()
    assert again.rows == verdict.rows


def test_the_calls_of_a_run_that_died_can_be_traced(runner: Runner) -> None:
    verdict, calls = runner.trace(case_of("READS_FAR"))
    assert verdict.observations[0].kind is Kind.ILLEGAL_ACCESS
    assert calls is not None
    assert [call.op for call in calls.calls] == ["reads_far"]
    assert runner.verdict(calls).observations[0].kind is Kind.ILLEGAL_ACCESS
