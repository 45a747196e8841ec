"""What can be said of jobs on Ray where it is not installed; tests/cluster has the rest."""

import signal
import sys
from pathlib import Path

import pytest

from attnfuzz.harness.campaign import run
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.ray_jobs import RayError, RayJobs
from attnfuzz.harness.findings.ledger import Ledger
from attnfuzz.harness.search.messages import JobSetup


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    handler = signal.getsignal(signal.SIGTERM)
    jobs = RayJobs(1, JobSetup(backends=("torch_sdpa",), contract="declared", guard=None), address="local")
    with pytest.raises(RayError, match=r"pip install 'attnfuzz\[ray\]'"):
        jobs.__enter__()
    assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize(("backends", "gpus"), [(("trtllm_mha",), 0.0), (("trtllm_mha", "hopper:trtllm_mha"), 1.0)])
def test_a_job_on_a_gpu_asks_the_cluster_for_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backends: tuple[str, ...], gpus: float
) -> None:
    asked: list[float] = []

    class NoCluster(Exception):
        """Nothing runs in this test."""

    def ray_jobs(_count: int, _setup: JobSetup, *, address: str, gpus: float) -> None:
        assert address == "head:6379"
        asked.append(gpus)
        raise NoCluster

    monkeypatch.setattr(run, "RayJobs", ray_jobs)
    plan = Plan(backends=backends, out=tmp_path, examples=1, ray="head:6379")
    with pytest.raises(NoCluster):
        run.carry_out(plan, Home(tmp_path), Ledger(), ())
    assert asked == [gpus]
    assert not list(tmp_path.iterdir()), "no campaign is left behind"
