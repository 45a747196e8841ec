"""Defects of the C++ kernels, listed in JSON files.

kernels.json describes the defects of attention: in addressing, masking, arithmetic, merging, repairs, and the shared
workspace. writes.json and transforms.json describe the defects of kernels that write into a KV cache, rotate, gather
and copy, sparse.json those of sparse attention. kernels/native/defects.h has each of them by the same name.
"""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from attnfuzz.kernels.cache_writes.native import NativeWriter
from attnfuzz.kernels.defects.defect import AttentionDefect, BugClass, Layer, SparseDefect, WriteDefect
from attnfuzz.kernels.defects.native import coarse_kernels, defective, prepare
from attnfuzz.kernels.native.planted import Planted
from attnfuzz.kernels.sparse.backend import SparseBackend
from attnfuzz.kernels.trtllm.backends import TrtllmBackend
from attnfuzz.reference.mistake import Mistake


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A defect in the native kernels that `backend` runs. With `coarse`, they compute like tensor cores."""

    name: str
    backend: str
    layer: Layer
    bug_class: BugClass = msgspec.field(name="class")
    title: str
    source: str
    explained_by: tuple[Mistake, ...] = ()
    coarse: bool = False

    @property
    def about(self) -> tuple[Any, ...]:
        """The first fields of a planted defect."""
        return self.name, self.layer, self.bug_class, self.title, self.source, self.backend, self.explained_by

    def in_attention(self, correct: TrtllmBackend) -> TrtllmBackend:
        """Plant the defect in an attention backend."""
        return coarse_kernels(correct, self.name) if self.coarse else replace(correct, table=defective(self.name))

    def in_writer(self, correct: NativeWriter) -> NativeWriter:
        """Plant the defect in a writer."""
        function = functools.update_wrapper(Planted(correct.function, self.name), correct.function)
        return replace(correct, function=function, build=prepare)

    def in_sparse(self, correct: SparseBackend) -> SparseBackend:
        """Plant the defect in the ops of sparse attention."""
        functions = {
            kind: functools.update_wrapper(Planted(function, self.name), function)
            for kind, function in correct.functions.items()
        }
        return replace(correct, functions=functions, load=prepare)


def _entries(name: str) -> list[_Entry]:
    return msgspec.json.decode(Path(__file__).with_name(name).read_bytes(), type=list[_Entry])


DEFECTS: Final = tuple(AttentionDefect(*each.about, plant=each.in_attention) for each in _entries("kernels.json"))
WRITE_DEFECTS: Final = tuple(
    WriteDefect(*each.about, plant=each.in_writer)
    for name in ("writes.json", "transforms.json")
    for each in _entries(name)
)
SPARSE_DEFECTS: Final = tuple(SparseDefect(*each.about, plant=each.in_sparse) for each in _entries("sparse.json"))
