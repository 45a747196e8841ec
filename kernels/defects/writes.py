"""Defects of the C++ kernels that write into a KV cache, rotate, gather and copy.

writes.json and transforms.json describe them; kernels/native/defects.h has each of them by the same name.
"""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from attnfuzz.kernels.cache_writes.native import NativeWriter
from attnfuzz.kernels.defects.defect import BugClass, Layer, WriteDefect
from attnfuzz.kernels.defects.native import planted, prepare


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A defect of the kernel below `backend`."""

    name: str
    backend: str
    layer: Layer
    bug_class: BugClass = msgspec.field(name="class")
    title: str
    source: str

    @property
    def defect(self) -> WriteDefect:
        """The same as a planted defect."""
        about = self.name, self.layer, self.bug_class, self.title, self.source, self.backend
        return WriteDefect(*about, plant=self._plant)

    def _plant(self, correct: NativeWriter) -> NativeWriter:
        @functools.wraps(correct.function)
        def function(**arguments: Any) -> Any:
            with planted(self.name):
                return correct.function(**arguments)

        return replace(correct, function=function, build=prepare)


_FILES: Final = ("writes.json", "transforms.json")

DEFECTS: Final = tuple(
    entry.defect
    for name in _FILES
    for entry in msgspec.json.decode(Path(__file__).with_name(name).read_bytes(), type=list[_Entry])
)
