"""What is said about Ray where it is not installed; tests/cluster has the rest."""

import signal
import sys

import pytest

from attnfuzz.harness.campaign.ray_jobs import RayError, RayJobs
from attnfuzz.harness.search.messages import JobSetup


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    handler = signal.getsignal(signal.SIGTERM)
    jobs = RayJobs(1, JobSetup(backends=("torch_sdpa",), contract="declared", guard=None), address="local")
    with pytest.raises(RayError, match=r"pip install 'attnfuzz\[ray\]'"):
        jobs.__enter__()
    assert signal.getsignal(signal.SIGTERM) is handler
