"""Planting: replaces a part of a backend's session by one with a wrong method.

The attention that a session reports as due stays correct: defects are in the arguments of kernels, in their buffers, or
in the handling of their results.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, cast

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.native import coarse_kernels
from attnfuzz.kernels.paged_kv import PagedKv
from attnfuzz.kernels.plan import PageTable
from attnfuzz.kernels.trtllm.backends import MHA, MLA, TrtllmBackend
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.kernels.trtllm.prefill import MlaPrefill
from attnfuzz.kernels.workspace import SharedWorkspace
from attnfuzz.reference.mistake import Mistake

Session = type[MhaSession] | type[MlaSession]
Part = MhaSession | MlaSession | MlaPrefill | PageTable | PagedKv | SharedWorkspace

Plant = Callable[[TrtllmBackend], TrtllmBackend]
_PartType = TypeVar("_PartType", bound=type[Part])

_PLACES = (
    (MlaPrefill, MlaSession, "prefill_type"),
    (PageTable, MhaSession, "table_type"),
    (PagedKv, MhaSession, "kv_type"),
    (SharedWorkspace, MhaSession, "workspace_type"),
)
"""Each part of a session, the session that is planted with it, and the attribute that names its class."""


class Planted(list[Defect]):
    """Defects with a default layer; a defect's title is its docstring."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self._layer = layer

    def add(
        self,
        name: str,
        bug_class: BugClass,
        source: str,
        *,
        layer: Layer | None = None,
        coarse: bool = False,
        explained_by: tuple[Mistake, ...] = (),
    ) -> Callable[[_PartType], _PartType]:
        """Add the decorated class, a session or a part of one, as a defect.

        Sessions and prefills belong to one backend each; other parts are planted in trtllm_mha. With `coarse`, the
        kernels compute like tensor cores, whose rounding hides small errors.
        """

        def decorate(part: _PartType) -> _PartType:
            session = _session(part)

            def plant(backend: TrtllmBackend) -> TrtllmBackend:
                return replace(coarse_kernels(backend) if coarse else backend, session=session)

            backend = MLA if issubclass(session, MlaSession) else MHA
            self._append(name, layer, bug_class, part.__doc__, source, backend, plant, explained_by)
            return part

        return decorate

    def add_change(
        self, name: str, bug_class: BugClass, source: str, *, explained_by: tuple[Mistake, ...] = ()
    ) -> Callable[[Plant], Plant]:
        """Add the decorated function, which changes trtllm_mha, as a defect."""

        def decorate(plant: Plant) -> Plant:
            self._append(name, None, bug_class, plant.__doc__, source, MHA, plant, explained_by)
            return plant

        return decorate

    def _append(
        self,
        name: str,
        layer: Layer | None,
        bug_class: BugClass,
        title: str | None,
        source: str,
        backend: TrtllmBackend,
        plant: Plant,
        explained_by: tuple[Mistake, ...],
    ) -> None:
        title = inspect.cleandoc(title or "")
        self.append(Defect(name, layer or self._layer, bug_class, title, source, backend.name, plant, explained_by))


def _session(part: type[Part]) -> Session:
    """The session that is, or has, this part."""
    for correct, session, attribute in _PLACES:
        if issubclass(part, correct):
            return type("Session", (session,), {attribute: part})
    return cast("Session", part)
