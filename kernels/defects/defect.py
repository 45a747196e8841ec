"""What a planted defect is: a bug with a source, a few lines away from a correct piece, to measure the judge with."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from attnfuzz.kernels.trtllm.backends import TrtllmBackend
from attnfuzz.reference.mistake import Mistake


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


class BugClass(StrEnum):
    """The classes of bug that serving engines have met, in words that fit a command line."""

    ROWS_DIFFER_FROM_METADATA = "rows-differ-from-metadata"
    PLANNED_THEN_PADDED = "planned-then-padded"
    CAPTURE_AND_REPLAY_DIFFER = "capture-and-replay-differ"
    STALE_TAILS = "stale-tails"
    SHORT_KV = "short-kv"
    TABLE_WIDTH_OR_TAIL = "table-width-or-tail"
    WRONG_INDEX_SPACE = "wrong-index-space"
    STRIDES = "strides"
    ALIGNMENT = "alignment"
    INT32_OFFSETS = "int32-offsets"
    SCALES = "scales"
    LSE_AND_MERGE = "lse-and-merge"
    WINDOW = "window"
    SINKS = "sinks"
    WORKSPACE = "workspace"
    MASK_ROWS = "mask-rows"
    PAGE_LAYOUT = "page-layout"
    PRECISION = "precision"


@dataclass(frozen=True)
class Defect:
    """One planted bug.

    `title` says in one line what is wrong, `source` where it was met (a pull request, an issue). `backend` is the name
    of the correct backend that `plant` makes the defective one of. `explained_by` are the mistakes that an explanation
    of its wrong rows may rightly name; where there are none, it is right to say nothing.
    """

    name: str
    layer: Layer
    bug_class: BugClass
    title: str
    source: str
    backend: str
    plant: Callable[[TrtllmBackend], TrtllmBackend]
    explained_by: tuple[Mistake, ...] = ()
