"""Planted defects: bugs with a source, a few lines away from correct code, that measure the judge."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from attnfuzz.kernels.trtllm.backends import TrtllmBackend
from attnfuzz.reference.mistake import Mistake


class Layer(StrEnum):
    """The layer of the code with the defect."""

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
    """The classes of bug seen in serving engines, in words for the command line."""

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

    `title` states the mistake in one line, `source` a pull request or an issue with such a bug. `plant` makes the
    defective backend from the correct one, whose name is `backend`. `explained_by` are the mistakes that a correct
    explanation of its wrong rows may name; if there are none, the correct explanation is silence.
    """

    name: str
    layer: Layer
    bug_class: BugClass
    title: str
    source: str
    backend: str
    plant: Callable[[TrtllmBackend], TrtllmBackend]
    explained_by: tuple[Mistake, ...] = ()
