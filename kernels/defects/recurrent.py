"""Defects of the C++ kernels of recurrent state, listed in recurrent.json. kernels/native/defects.h has their names."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import update_wrapper
from pathlib import Path
from typing import Any, Final

import msgspec

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.native import prepare
from attnfuzz.kernels.native.planted import Planted
from attnfuzz.kernels.recurrent.native import NATIVE_STATES


@dataclass(frozen=True, kw_only=True)
class StateDefect(Defect):
    """A bug in the kernels of a backend of recurrent state."""

    def planted(self, name: str) -> Any:
        """Return the defective backend, named `name`."""
        correct = next(each for each in NATIVE_STATES if each.name == self.backend)
        functions = {mode: self._with_defect(function) for mode, function in correct.functions.items()}
        return replace(correct, label=name, functions=functions, build=prepare)

    def _with_defect(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return update_wrapper(Planted(function, self.name), function)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A defect in the kernels that `backend` runs."""

    name: str
    backend: str
    layer: Layer
    bug_class: BugClass = msgspec.field(name="class")
    title: str
    source: str


DEFECTS: Final = tuple(
    StateDefect(each.name, each.layer, each.bug_class, each.title, each.source, each.backend)
    for each in msgspec.json.decode(Path(__file__).with_name("recurrent.json").read_bytes(), type=list[_Entry])
)
