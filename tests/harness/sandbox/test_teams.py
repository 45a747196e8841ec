"""Workers for each kind of device, and the GPU that a process's workers get."""

from typing import Any

import pytest

from attnfuzz.harness.campaign.jobs import JobProcesses
from attnfuzz.harness.sandbox import teams
from attnfuzz.harness.sandbox.teams import Team, Teams, team_of
from attnfuzz.harness.search.messages import JobSetup, Slice
from attnfuzz.harness.workers import gpu_core
from attnfuzz.kernels.cuda.visible import Gpu
from attnfuzz.reference.device import Device


class Started:
    """Workers that only remember how they were started."""

    def __init__(self, handler: str, preload: tuple[str, ...], spares: int = 1, **options: Any) -> None:
        self.preload, self.spares, self.options = preload, spares, options
        self.restarts, self.renewed, self.closed = 3, 0, False

    def renew(self) -> None:
        self.renewed += 1

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = tuple(Gpu(n, "NVIDIA H200", "9.0", 1 << 37, f"GPU-{n}{n}") for n in range(4))
    monkeypatch.setattr(teams, "visible", lambda: gpus)
    monkeypatch.setattr(teams, "Workers", Started)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv(gpu_core.VARIABLE, raising=False)


def gpu_of(team: Teams) -> str:
    workers: Any = team.of(Team(Device.CUDA))
    chosen: str = workers.options["environment"]["CUDA_VISIBLE_DEVICES"]
    return chosen


@pytest.mark.parametrize("asked", [None, "8"])
def test_contexts_have_two_hardware_queues_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, asked: str | None
) -> None:
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    if asked is not None:
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", asked)
    workers: Any = Teams().of(Team(Device.CUDA))
    assert workers.options["environment"]["CUDA_DEVICE_MAX_CONNECTIONS"] == (asked or "2")


def test_a_team_starts_when_it_is_first_asked_for_and_stays() -> None:
    both = Teams()
    gpu: Any = both.of(Team(Device.CUDA), "xqa")
    assert both.of(Team(Device.CUDA), "fa2_paged") is gpu
    assert both.of(Team(Device.CPU)) is not gpu


def test_workers_that_begin_on_a_gpu_are_made_ready_for_the_backend_at_work_alone() -> None:
    team = Teams()
    gpu: Any = team.of(Team(Device.CUDA), "xqa")
    assert gpu.options["arguments"] == ("xqa",)
    team.of(Team(Device.CUDA), "fa2_paged")
    assert gpu.arguments == ("fa2_paged",)
    team.of(Team(Device.CUDA))
    assert gpu.arguments == ("fa2_paged",)


def test_workers_of_the_cpu_begin_without_a_gpu() -> None:
    team = Teams()
    cpu: Any = team.of(Team(Device.CPU), "trtllm_mha")
    assert (cpu.spares, cpu.options) == (1, {})
    team.of(Team(Device.CPU), "trtllm_mla")
    assert not hasattr(cpu, "arguments")


def test_each_release_of_an_engine_has_workers_of_its_own() -> None:
    teams = Teams()
    names = ("sglang==0.5.9:trtllm_mha", "sglang==0.5.11:trtllm_mha", "fake==1.0:decoder", "trtllm_mha")
    assert len({id(teams.of(team_of(name))) for name in names}) == 4
    assert team_of("sglang==0.5.9:trtllm_mla") == team_of("sglang==0.5.9:trtllm_mha")
    assert team_of("torch_sdpa") == team_of("trtllm_mha") == Team(Device.CPU)


@pytest.mark.parametrize(
    ("backend", "hook"),
    [
        ("sglang==0.5.9:trtllm_mha", ("attnfuzz.kernels.sglang.preload:load_release", "sglang==0.5.9")),
        (
            "hopper:sglang==0.5.23:trtllm_mha",
            ("attnfuzz.kernels.sglang.preload:load_release_for_hopper", "sglang==0.5.23"),
        ),
        ("fake==1.0:decoder", ("fake_engine:load", "fake==1.0")),
    ],
)
def test_a_release_is_imported_before_its_workers_are_forked(backend: str, hook: tuple[str, ...]) -> None:
    team = team_of(backend)
    started: Any = Teams().of(team)
    others: Any = Teams().of(Team(team.device))
    assert started.preload == (*others.preload, hook)


def test_workers_of_a_gpu_begin_there_and_have_more_spares() -> None:
    gpu: Any = Teams().of(Team(Device.CUDA))
    assert gpu.options["begin"] == "attnfuzz.harness.entry:begin_on_gpu"
    assert gpu.spares == 2


def test_processes_take_the_visible_gpus_in_turn() -> None:
    assert [gpu_of(Teams(index)) for index in range(6)] == ["GPU-00", "GPU-11", "GPU-22", "GPU-33", "GPU-00", "GPU-11"]


def test_without_a_number_it_is_the_first_gpu() -> None:
    assert gpu_of(Teams()) == "GPU-00"


@pytest.mark.parametrize(
    ("name", "gpu"), [("gw0", "GPU-00"), ("gw2", "GPU-22"), ("gw7", "GPU-33"), ("master", "GPU-00")]
)
def test_workers_of_xdist_take_theirs_by_their_number(name: str, gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", name)
    assert gpu_of(Teams()) == gpu
    assert gpu_of(Teams(1)) == "GPU-11"


def test_core_dumps_are_switched_on_for_workers_of_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv(gpu_core.VARIABLE, str(tmp_path))
    gpu: Any = Teams().of(Team(Device.CUDA))
    assert gpu.options["environment"]["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] == "1"


def test_all_teams_are_renewed_counted_and_closed() -> None:
    both = Teams()
    started: list[Any] = [both.of(Team(Device.CPU)), both.of(Team(Device.CUDA))]
    both.renew()
    both.close()
    assert both.restarts == 6
    assert all(team.closed and team.renewed == 1 for team in started)


def test_each_job_of_a_campaign_is_given_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    class Started:
        def __init__(self, setup: JobSetup) -> None:
            sent.append(setup.job)

        def messages(self) -> tuple[Slice, ...]:
            return ()

        def ask_to_leave(self) -> None:
            pass

        kill = ask_to_leave

        def end(self, deadline: float) -> None:
            pass

        wait = end

    monkeypatch.setattr("attnfuzz.harness.campaign.jobs.JobProcess", Started)
    with JobProcesses(3, JobSetup(backends=("xqa",), contract="declared", guard=None)) as jobs:
        jobs.restart(2)
    assert sent == [0, 1, 2, 2]
