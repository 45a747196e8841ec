"""Defects of the C++ kernels: in addressing, masking, arithmetic, merging, repairs, and the shared workspace.

kernels.json describes them; kernels/native/defects.h has each of them by the same name.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from attnfuzz.kernels.defects.defect import AttentionDefect, BugClass, Layer
from attnfuzz.kernels.defects.native import coarse_kernels, defective
from attnfuzz.kernels.trtllm.backends import TrtllmBackend
from attnfuzz.reference.mistake import Mistake


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A defect of the kernels below `backend`. With `coarse`, they compute like tensor cores."""

    name: str
    backend: str
    layer: Layer
    bug_class: BugClass = msgspec.field(name="class")
    title: str
    source: str
    explained_by: tuple[Mistake, ...] = ()
    coarse: bool = False

    @property
    def defect(self) -> AttentionDefect:
        """The same as a planted defect."""
        about = self.name, self.layer, self.bug_class, self.title, self.source, self.backend
        return AttentionDefect(*about, self.explained_by, plant=self._plant)

    def _plant(self, correct: TrtllmBackend) -> TrtllmBackend:
        return coarse_kernels(correct, self.name) if self.coarse else replace(correct, table=defective(self.name))


DEFECTS: Final = tuple(
    entry.defect for entry in msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=list[_Entry])
)
