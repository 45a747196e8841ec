"""Planted defects, the yardstick for the judge: bugs seen in real projects, each a few lines away from correct code."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from attnfuzz.kernels.cache_writes.native import NATIVE_WRITERS, NativeWriter
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.sparse.backend import SparseBackend
from attnfuzz.kernels.sparse.native import SPARSE
from attnfuzz.kernels.trtllm.backends import TRTLLM_BACKENDS, TrtllmBackend
from attnfuzz.reference.mistake import Mistake


class Layer(StrEnum):
    """The layer of the code that has the defect."""

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
    WRITE = "write"
    STATE = "state"


class BugClass(StrEnum):
    """The classes of bugs seen in serving engines, in words for the command line."""

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
    CUSTOM_MASKS = "custom-masks"
    PAGE_LAYOUT = "page-layout"
    PRECISION = "precision"
    PADDING_SLOTS = "padding-slots"
    DROPPED_WRITES = "dropped-writes"
    STRAY_WRITES = "stray-writes"
    ROPE = "rope"
    KEPT_BY_AN_OBJECT = "kept-by-an-object"
    STATE_SLOTS = "state-slots"
    STATE_DRAFTS = "state-drafts"
    STATE_CHUNKS = "state-chunks"
    STATE_GATES = "state-gates"
    CONVOLUTION = "convolution"


@dataclass(frozen=True)
class Defect(ABC):
    """A planted bug in the backend named `backend`.

    `title` states the mistake in one line; `source` names a pull request or an issue with such a bug. A correct
    explanation of the wrong rows may name any mistake in `explained_by`. If that is empty, the correct explanation is
    silence.
    """

    name: str
    layer: Layer
    bug_class: BugClass
    title: str
    source: str
    backend: str
    explained_by: tuple[Mistake, ...] = ()

    @abstractmethod
    def planted(self, name: str) -> Backend:
        """Return the defective backend, named `name`."""


@dataclass(frozen=True, kw_only=True)
class AttentionDefect(Defect):
    """A bug in an attention backend; `plant` turns the correct backend into the defective one."""

    plant: Callable[[TrtllmBackend], TrtllmBackend]

    def planted(self, name: str) -> TrtllmBackend:
        """Return the defective backend, named `name`."""
        correct = next(backend for backend in TRTLLM_BACKENDS if backend.name == self.backend)
        return replace(self.plant(correct), name=name)


@dataclass(frozen=True, kw_only=True)
class WriteDefect(Defect):
    """A bug in a writer of the KV cache; `plant` turns the correct writer into the defective one."""

    plant: Callable[[NativeWriter], NativeWriter]

    def planted(self, name: str) -> NativeWriter:
        """Return the defective writer, named `name`."""
        correct = next(writer for writer in NATIVE_WRITERS if writer.name == self.backend)
        return replace(self.plant(correct), label=name)


@dataclass(frozen=True, kw_only=True)
class SparseDefect(Defect):
    """A bug in an op of sparse attention; `plant` turns the correct backend into the defective one."""

    plant: Callable[[SparseBackend], SparseBackend]

    def planted(self, name: str) -> SparseBackend:  # type: ignore[override]
        """Return the defective backend, named `name`."""
        return replace(self.plant(SPARSE), label=name)
