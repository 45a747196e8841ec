"""What workers do before they are ready, and the nursery must not."""

import pytest

from attnfuzz.harness.workers import gpu_gone, supervisor
from attnfuzz.harness.workers.gpu_gone import GpuGone
from attnfuzz.harness.workers.lifeline import CannotStart
from attnfuzz.harness.workers.supervisor import Refused, Workers


def answer(workers: Workers, request: str) -> list[str]:
    reply = workers.run(request.encode(), timeout=60)
    assert isinstance(reply, bytes)
    return reply.decode().split()


@pytest.mark.slow
def test_each_worker_begins_by_itself_before_its_first_request() -> None:
    with Workers("deadly_handlers:begun", begin="deadly_handlers:begin", arguments=("xqa", "fa2_paged")) as workers:
        pid, *begun = answer(workers, "NOTHING")
        assert begun == [pid, "xqa", "fa2_paged"]
        workers.renew()
        other, *begun = answer(workers, "NOTHING")
        assert other != pid
        assert begun == [other, "xqa", "fa2_paged"]


@pytest.mark.slow
def test_other_arguments_are_for_the_workers_that_are_forked_later() -> None:
    with Workers("deadly_handlers:begun", spares=0, begin="deadly_handlers:begin", arguments=("xqa",)) as workers:
        workers.arguments = ("fa2_paged",)
        assert answer(workers, "NOTHING")[1:] == [answer(workers, "NOTHING")[0], "xqa"]
        workers.renew()
        assert answer(workers, "NOTHING")[2:] == ["fa2_paged"]


@pytest.mark.slow
def test_workers_have_the_environment_that_they_are_given() -> None:
    with Workers("deadly_handlers:begun", environment={"CUDA_VISIBLE_DEVICES": "GPU-7"}) as workers:
        assert answer(workers, "CUDA_VISIBLE_DEVICES")[-1] == "GPU-7"


@pytest.mark.slow
def test_a_preload_hook_has_its_arguments_in_the_process_that_workers_are_forked_from() -> None:
    preload = ("deadly_handlers:warm", ("deadly_handlers:warm", "sglang==0.5.9", "a b"))
    with Workers("deadly_handlers:begun", preload) as workers:
        pid, nursery, *sent = answer(workers, "NOTHING")
        assert sent == ["then", nursery, "sglang==0.5.9", "a", "b"]
        assert pid != nursery


@pytest.mark.slow
def test_an_error_that_users_can_fix_is_reported_in_one_line() -> None:
    # The nursery may end before the first fork is ordered, or after it.
    with (
        pytest.raises(CannotStart, match=r"^no such release: name another$"),
        Workers("deadly_handlers:begun", [("deadly_handlers:refuse", "no such release: name another")]) as workers,
    ):
        workers.run(b"", timeout=60)


@pytest.mark.slow
def test_a_fixable_error_is_reported_by_starting_and_by_running_workers() -> None:
    with (
        Workers(
            "deadly_handlers:begun", begin="deadly_handlers:refuse", arguments=["no driver: install one"]
        ) as workers,
        pytest.raises(CannotStart, match=r"^no driver: install one$"),
    ):
        workers.run(b"", timeout=60)
    with Workers("deadly_handlers:obey") as workers:
        with pytest.raises(Refused, match=r"^name another release$"):
            workers.run(b"refuse name another release", timeout=60)
        assert workers.run(b"hello", timeout=60) != b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "reason"),
    [
        ("lose_gpu", r"no CUDA context can be created \(No CUDA GPUs are available\)$"),
        ("ask_gpu", r"its driver did not create a CUDA context within 0.1 s$"),
        ("break_context", r"a worker that started met an error \(launch failure on the GPU \(CUDA error 719\)\)$"),
    ],
)
def test_a_gpu_that_does_not_answer_a_worker_that_begins_is_reported_in_one_line(
    begin: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers on a CPU whose begin hooks do what those on a GPU do."""
    monkeypatch.setattr(gpu_gone, "SECONDS_FOR_A_CONTEXT", 0.1)
    monkeypatch.setattr(supervisor, "_SECONDS_PER_LOOK", 0.05)
    waited: list[float] = []
    monkeypatch.setattr(gpu_gone, "on_waiting", waited.append)
    with (
        Workers("deadly_handlers:obey", begin=f"deadly_handlers:{begin}") as workers,
        pytest.raises(GpuGone, match=f"^the GPU does not answer: {reason}"),
    ):
        workers.run(b"who", timeout=60)
    assert waited == sorted(waited)
    assert bool(waited) == (begin == "ask_gpu")


@pytest.mark.slow
def test_a_gpu_that_is_gone_in_the_middle_of_a_request_is_reported_as_well() -> None:
    with Workers("deadly_handlers:obey") as workers, pytest.raises(GpuGone, match="No CUDA GPUs are available"):
        workers.run(b"lose_gpu", timeout=60)


def test_a_hooks_name_is_checked_at_the_door() -> None:
    with pytest.raises(ValueError, match="write module:function"):
        Workers("deadly_handlers:begun", begin="begin")
    with pytest.raises(ValueError, match="'warm' names no function"):
        Workers("deadly_handlers:begun", [("warm", "deadly_handlers:warm")])
