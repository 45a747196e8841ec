"""What can be said of jobs on Ray where it is not installed; tests/cluster has the rest."""

import signal
import sys
from pathlib import Path

import pytest
from fake_ray import FakeRay, Node

from attnfuzz.harness.campaign import ray_jobs, run
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.jobs import JobEnded
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.ray_jobs import RayError, RayJobs, share
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.search.messages import JobSetup, Slice, SliceDone
from attnfuzz.kernels.interface.toolchain import BUILT


def test_without_ray_the_error_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    handler = signal.getsignal(signal.SIGTERM)
    jobs = RayJobs(1, JobSetup(backends=("torch_sdpa",), contract="declared", guard=None), address="local")
    with pytest.raises(RayError, match=r"pip install 'attnfuzz\[ray\]'"):
        jobs.__enter__()
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize(
    ("backends", "on_gpu"), [(("trtllm_mha",), False), (("trtllm_mha", "hopper:trtllm_mha"), True)]
)
def test_a_job_on_a_gpu_asks_the_cluster_for_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backends: tuple[str, ...], *, on_gpu: bool
) -> None:
    asked: list[bool] = []

    class NoCluster(Exception):
        """Nothing runs in this test."""

    def ray_jobs(_count: int, _setup: JobSetup, *, address: str, on_gpu: bool) -> None:
        assert address == "head:6379"
        asked.append(on_gpu)
        raise NoCluster

    monkeypatch.setattr(run, "RayJobs", ray_jobs)
    plan = Plan(backends=backends, out=tmp_path, examples=1, ray="head:6379")
    with pytest.raises(NoCluster):
        run.carry_out(plan, Home(tmp_path), Ledger(), ())
    assert asked == [on_gpu]
    assert not list(tmp_path.iterdir()), "no campaign is left behind"


@pytest.mark.parametrize(
    ("jobs", "gpus", "each"), [(14, 1, 1 / 14), (14, 4, 0.25), (5, 4, 0.5), (2, 4, 1), (3, 0, 1 / 3)]
)
def test_jobs_share_the_gpus_that_there_are(jobs: int, gpus: float, each: float) -> None:
    assert share(jobs, gpus) == each
    assert gpus == 0 or gpus * int(1 / each) >= jobs


NO_GPU = {"xqa": "no GPU is visible"}


def on(monkeypatch: pytest.MonkeyPatch, ray: FakeRay, count: int, *, on_gpu: bool = False) -> RayJobs:
    monkeypatch.setattr(ray_jobs, "_import_ray", lambda: ray)
    setup = JobSetup(backends=("trtllm_mha", "xqa"), contract="declared", guard=None)
    return RayJobs(count, setup, address="head:6379", on_gpu=on_gpu)


def task(backend: str) -> Slice:
    return Slice(backend=backend, seed=0, examples=1)


def finished(jobs: RayJobs, calls: int) -> list[int]:
    """The jobs whose slices are over after so many calls."""
    received = [jobs.next_message(0.0) for _ in range(calls)]
    return [each[0] for each in received if each is not None and isinstance(each[1], SliceDone)]


def test_jobs_reserve_their_share_of_a_gpu_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(Node(), gpus=2)
    with on(monkeypatch, ray, 5, on_gpu=True), on(monkeypatch, ray, 1):
        assert ray.reserved == [1 / 3] * 5 + [0.0]


def test_a_slice_goes_to_a_node_that_can_run_it(monkeypatch: pytest.MonkeyPatch) -> None:
    without, with_gpu = Node(NO_GPU), Node()
    with on(monkeypatch, FakeRay(without, with_gpu), 2) as jobs:
        for job, backend in enumerate(("xqa", "trtllm_mha")):
            jobs.start(job, task(backend))
        assert sorted(finished(jobs, 6)) == [0, 1]
        jobs.start(0, task("xqa"))
        assert finished(jobs, 2) == [0]
    assert without.ran == ["trtllm_mha"]
    assert with_gpu.ran == ["xqa", "xqa"]


def test_a_backend_that_no_node_can_run_ends_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with on(monkeypatch, FakeRay(Node(NO_GPU)), 1) as jobs:
        jobs.start(0, task("xqa"))
        assert jobs.next_message(0.0) is None
        with pytest.raises(JobEnded) as ended:
            jobs.next_message(0.0)
    assert ended.value.text == "no node of the cluster can run xqa: no GPU is visible"
    assert (ended.value.number, ended.value.killed) == (0, False)


def test_a_slice_waits_while_a_node_may_still_come(monkeypatch: pytest.MonkeyPatch) -> None:
    with on(monkeypatch, FakeRay(Node(NO_GPU)), 2) as jobs:
        jobs.start(0, task("xqa"))
        assert finished(jobs, 4) == []


def test_actors_that_are_lost_together_are_one_false_start(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [Node(lost=True) for _ in range(4)]
    with on(monkeypatch, FakeRay(*lost, Node()), 4) as jobs:
        jobs.start(0, task("xqa"))
        assert finished(jobs, 6) == [0]


def test_actors_that_never_start_end_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(*(Node(lost=True) for _ in range(4)))
    with on(monkeypatch, ray, 1) as jobs, pytest.raises(JobEnded) as ended:
        finished(jobs, 4)
    assert ended.value.text == "Ray can't start a job: its node has died"


def test_actors_are_limited_to_compiled_modules_as_the_campaign_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(Node(), Node())
    monkeypatch.delenv(BUILT, raising=False)
    with on(monkeypatch, ray, 1):
        monkeypatch.setenv(BUILT, "1")
        with on(monkeypatch, ray, 1):
            assert ray.choices == [{}, {BUILT: "1"}]
