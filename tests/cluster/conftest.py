"""A Ray cluster of several nodes on this machine, and a driver that is connected to it."""

from collections.abc import Iterator
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head node without cores, so that every job is on a node that can go away."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - only where Ray is installed

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80_000_000})
    yield cluster
    ray.shutdown()
    cluster.shutdown()
