"""Nodes for a Ray cluster on this machine."""

from typing import Any


def add_node(cluster: Any, cores: int = 1, gpus: int = 0) -> Any:
    """A node with so many cores and GPUs, which Ray only counts."""
    return cluster.add_node(num_cpus=cores, num_gpus=gpus, object_store_memory=80_000_000)
