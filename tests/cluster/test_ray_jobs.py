"""Jobs on a Ray cluster: spread over nodes, and what happens when one of them goes away."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from cluster_nodes import add_node

from attnfuzz.harness.campaign.jobs import JobEnded
from attnfuzz.harness.campaign.ray_jobs import RayError, RayJobs
from attnfuzz.harness.search.messages import AnyMessage, Caught, JobSetup, MaySettle, Slice, SliceDone

pytestmark = pytest.mark.cluster

BACKEND = "torch_sdpa"
SECONDS = 120.0
LONG = 100_000
SECONDS_UNTIL_RAY_KNOWS = 30.0
"""Until a node without a raylet counts as lost: more than its health checks take (RAY_health_check_*)."""


def ray_jobs(cluster: Any, count: int, *, backend: str = BACKEND, on_gpu: bool = False) -> RayJobs:
    setup = JobSetup(backends=(backend,), contract="declared", guard=None)
    return RayJobs(count, setup, address=cluster.address, on_gpu=on_gpu)


def task(index: int, examples: int) -> Slice:
    return Slice(backend=BACKEND, index=index, seed=index, examples=examples)


def listen(jobs: RayJobs, until: Callable[[list[tuple[int, AnyMessage]]], bool]) -> list[tuple[int, AnyMessage]]:
    """All messages until enough came."""
    heard: list[tuple[int, AnyMessage]] = []
    deadline = time.monotonic() + SECONDS
    while not until(heard):
        assert time.monotonic() < deadline, "too few messages in two minutes"
        received = jobs.next_message(0.1)
        if received is not None:
            heard.append(received)
    return heard


def finished(heard: list[tuple[int, AnyMessage]]) -> dict[int, int]:
    """The examples that each job searched in slices that it finished."""
    return {job: message.tally.searched for job, message in heard if isinstance(message, SliceDone)}


def test_each_node_runs_a_job(cluster: Any) -> None:
    nodes = [add_node(cluster), add_node(cluster)]
    with ray_jobs(cluster, 2) as jobs:
        jobs.start(0, task(0, 4))
        jobs.start(1, task(1, 6))
        assert finished(listen(jobs, lambda heard: len(finished(heard)) == len(nodes))) == {0: 4, 1: 6}
        jobs.start(0, task(2, 3))
        assert finished(listen(jobs, lambda heard: bool(finished(heard)))) == {0: 3}


def test_a_node_that_goes_away_takes_only_its_own_slice(cluster: Any) -> None:
    nodes = [add_node(cluster), add_node(cluster)]
    with ray_jobs(cluster, 2) as jobs:
        jobs.start(0, task(0, LONG))
        jobs.start(1, task(1, LONG))
        listen(jobs, lambda heard: {job for job, _ in heard} == {0, 1})
        cluster.remove_node(nodes[0])
        with pytest.raises(JobEnded) as ended:
            listen(jobs, lambda _: False)
        assert ended.value.killed
        other = 1 - ended.value.number
        jobs.restart(ended.value.number)
        jobs.start(ended.value.number, task(2, 5))
        assert {job for job, _ in listen(jobs, lambda heard: len(heard) > 10)} == {other}
        add_node(cluster)
        heard = listen(jobs, lambda heard: bool(finished(heard)))
        assert finished(heard) == {ended.value.number: 5}


def test_a_node_that_crashes_under_several_jobs_leaves_the_others_searching(cluster: Any) -> None:
    add_node(cluster, cores=1)
    crashing = add_node(cluster, cores=4)
    with ray_jobs(cluster, 5) as jobs:
        for job in range(5):
            jobs.start(job, task(job, LONG))
        listen(jobs, lambda received: {job for job, _ in received} == set(range(5)))
        # Ray learns of it after seconds, and places the new actors there until then.
        crashing.kill_raylet(check_alive=False)
        for _ in range(4):
            with pytest.raises(JobEnded) as ended:
                listen(jobs, lambda _: False)
            assert ended.value.killed
            jobs.restart(ended.value.number)
            jobs.start(ended.value.number, task(5, LONG))
        end = time.monotonic() + SECONDS_UNTIL_RAY_KNOWS
        listen(jobs, lambda _: time.monotonic() > end)
        add_node(cluster, cores=4)
        listen(jobs, lambda received: {job for job, _ in received} == set(range(5)))


def test_a_slice_without_a_free_actor_is_taken_by_another_job(cluster: Any) -> None:
    add_node(cluster)
    with ray_jobs(cluster, 3) as jobs:
        for job in range(3):
            jobs.start(job, task(job, 3))
        assert finished(listen(jobs, lambda heard: len(finished(heard)) == 3)) == {0: 3, 1: 3, 2: 3}


def test_an_actor_leaves_a_failure_whose_claim_is_refused(cluster: Any) -> None:
    add_node(cluster)
    failing = "trtllm_mha@21649-before"
    with ray_jobs(cluster, 1, backend=failing) as jobs:
        jobs.start(0, Slice(backend=failing, index=0, seed=1, examples=200))
        heard: list[tuple[int, AnyMessage]] = []
        while not finished(heard):
            job, message = listen(jobs, bool)[0]
            heard.append((job, message))
            if isinstance(message, MaySettle):
                jobs.answer(job, granted=False)
    messages = [message for _, message in heard]
    assert any(isinstance(message, MaySettle) for message in messages)
    assert not any(isinstance(message, Caught) for message in messages)


def test_a_job_that_needs_a_gpu_runs_where_there_is_one(cluster: Any) -> None:
    add_node(cluster)
    with ray_jobs(cluster, 1, on_gpu=True) as jobs:
        jobs.start(0, task(0, 3))
        assert jobs.next_message(3.0) is None
        add_node(cluster, gpus=1)
        assert finished(listen(jobs, lambda heard: bool(finished(heard)))) == {0: 3}


def test_four_jobs_run_at_once_on_two_gpus(cluster: Any) -> None:
    add_node(cluster, cores=4, gpus=2)
    with ray_jobs(cluster, 4, on_gpu=True) as jobs:
        for job in range(4):
            jobs.start(job, task(job, LONG))
        listen(jobs, lambda received: {job for job, _ in received} == {0, 1, 2, 3})


def test_a_job_that_fails_by_itself_says_how(cluster: Any) -> None:
    add_node(cluster)
    with ray_jobs(cluster, 1, backend="no_such_backend") as jobs:
        jobs.start(0, task(0, 3))
        with pytest.raises(JobEnded) as ended:
            listen(jobs, lambda _: False)
    assert not ended.value.killed
    assert "UnknownBackend" in ended.value.text


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "ray://127.0.0.1:1"])
def test_an_address_without_a_cluster_is_reported_at_once(address: str) -> None:
    started = time.monotonic()
    jobs = RayJobs(1, JobSetup(backends=(BACKEND,), contract="declared", guard=None), address=address)
    with pytest.raises(RayError, match="no Ray cluster at") as refused:
        jobs.__enter__()
    assert "\n" not in str(refused.value)
    assert time.monotonic() - started < 30
