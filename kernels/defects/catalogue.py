"""All planted defects, and the backends that have them."""

from dataclasses import replace
from functools import cache

from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.defects.arguments import ARGUMENT_DEFECTS
from attnfuzz.kernels.defects.chunks import CHUNK_DEFECTS
from attnfuzz.kernels.defects.defect import Defect
from attnfuzz.kernels.defects.graphs import GRAPH_DEFECTS
from attnfuzz.kernels.defects.kernels import KERNEL_DEFECTS
from attnfuzz.kernels.defects.memory import MEMORY_DEFECTS
from attnfuzz.kernels.defects.planners import PLANNER_DEFECTS
from attnfuzz.kernels.defects.tables import TABLE_DEFECTS
from attnfuzz.kernels.trtllm.backends import TRTLLM_BACKENDS

DEFECTS: tuple[Defect, ...] = (
    *PLANNER_DEFECTS,
    *TABLE_DEFECTS,
    *GRAPH_DEFECTS,
    *CHUNK_DEFECTS,
    *ARGUMENT_DEFECTS,
    *MEMORY_DEFECTS,
    *KERNEL_DEFECTS,
)


@cache
def planted() -> dict[str, Backend]:
    """Each defect as a backend, by a name like trtllm_mha+window_one_short."""
    correct = {backend.name: backend for backend in TRTLLM_BACKENDS}
    return {
        backend_name(defect): replace(defect.plant(correct[defect.backend]), name=backend_name(defect))
        for defect in DEFECTS
    }


def backend_name(defect: Defect) -> str:
    """The name of the backend that has this defect."""
    return f"{defect.backend}+{defect.name}"
