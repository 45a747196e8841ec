"""What a planted defect is: a bug with a source, a few lines away from a correct piece, to measure the judge with."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from attnfuzz.kernels.trtllm.backends import TrtllmBackend


class Layer(StrEnum):
    """Where a defect is planted."""

    KERNEL = "kernel"
    MASK = "mask"
    SINK = "sink"
    MERGE = "merge"
    SCALE = "scale"
    FIXUP = "fixup"
    MEMORY = "memory"
    CONCURRENCY = "concurrency"
    PLANNER = "planner"
    GRAPH = "graph"


class BugClass(IntEnum):
    """The classes of bug that serving engines have met."""

    ROWS_DIFFER_FROM_METADATA = 1
    PLANNED_THEN_PADDED = 2
    CAPTURE_AND_REPLAY_DIFFER = 3
    STALE_TAILS = 4
    SHORT_KV = 5
    TABLE_WIDTH_OR_TAIL = 6
    WRONG_INDEX_SPACE = 7
    STRIDES = 8
    ALIGNMENT = 9
    INT32_OFFSETS = 10
    SCALES = 11
    LSE_AND_MERGE = 12
    WINDOW = 13
    SINKS = 14
    WORKSPACE = 15
    MASK_ROWS = 16
    PAGE_LAYOUT = 17
    PRECISION = 18


@dataclass(frozen=True)
class Defect:
    """One planted bug.

    `title` says in one line what is wrong, `source` where it was met (a pull request, an issue). `backend` is the name
    of the correct backend that `plant` makes the defective one of.
    """

    name: str
    layer: Layer
    bug_class: BugClass
    title: str
    source: str
    backend: str
    plant: Callable[[TrtllmBackend], TrtllmBackend]
