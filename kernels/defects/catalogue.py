"""The catalogue of planted defects, and the defective backends made from them."""

from functools import cache

from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.defects import (
    arguments,
    chunks,
    custom_masks,
    graphs,
    kernels,
    lives,
    memory,
    planners,
    rope,
    slots,
    steps,
)
from attnfuzz.kernels.defects.defect import Defect

DEFECTS: tuple[Defect, ...] = (
    *(
        defect
        for part in (planners, custom_masks, graphs, chunks, arguments, memory, kernels, lives)
        for defect in part.DEFECTS
    ),
    *kernels.WRITE_DEFECTS,
    *slots.DEFECTS,
    *rope.DEFECTS,
    *steps.DEFECTS,
)


@cache
def planted() -> dict[str, Backend]:
    """Return one backend per defect, named like trtllm_mha+window_one_short."""
    return {backend_name(defect): defect.planted(backend_name(defect)) for defect in DEFECTS}


def backend_name(defect: Defect) -> str:
    """Return the name of the backend with this defect."""
    return f"{defect.backend}+{defect.name}"
