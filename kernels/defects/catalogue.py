"""All planted defects, and the defective backends."""

from dataclasses import replace
from functools import cache

from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.defects import arguments, chunks, graphs, kernels, memory, planners
from attnfuzz.kernels.defects.defect import Defect
from attnfuzz.kernels.trtllm.backends import TRTLLM_BACKENDS

DEFECTS: tuple[Defect, ...] = tuple(
    defect for part in (planners, graphs, chunks, arguments, memory, kernels) for defect in part.DEFECTS
)


@cache
def planted() -> dict[str, Backend]:
    """Each defect as a backend, named like trtllm_mha+window_one_short."""
    correct = {backend.name: backend for backend in TRTLLM_BACKENDS}
    return {
        backend_name(defect): replace(defect.plant(correct[defect.backend]), name=backend_name(defect))
        for defect in DEFECTS
    }


def backend_name(defect: Defect) -> str:
    """The name of the backend with this defect."""
    return f"{defect.backend}+{defect.name}"
