"""Planting: replace a part of a backend's session with a part that has a wrong method.

The attention that a session reports as expected stays correct: defects are in the arguments of kernels, in their
buffers, or in the handling of their results.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from attnfuzz.kernels.defects.defect import AttentionDefect, BugClass, Defect, Layer
from attnfuzz.kernels.defects.native import coarse_kernels
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import PageTable
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.kernels.trtllm.backends import MHA, MHA_MASKED, MHA_PLANNED, MLA, TrtllmBackend
from attnfuzz.kernels.trtllm.masked import MaskedMhaSession
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.kernels.trtllm.planned import PlannedAttention, PlannedMhaSession
from attnfuzz.kernels.trtllm.prefill import MlaPrefill
from attnfuzz.reference.mistake import Mistake

Session = type[MhaSession] | type[MlaSession]
Part = MhaSession | MlaSession | MlaPrefill | PageTable | PagedKv | SharedWorkspace | PlannedAttention

Plant = Callable[[TrtllmBackend], TrtllmBackend]
_Mistaken = TypeVar("_Mistaken", bound=type[Part] | Plant)

_PLACES = (
    (MlaPrefill, MlaSession, "prefill_type"),
    (PageTable, MhaSession, "table_type"),
    (PagedKv, MhaSession, "kv_type"),
    (SharedWorkspace, MhaSession, "workspace_type"),
    (PlannedAttention, PlannedMhaSession, "object_type"),
)
"""Each part of a session, the session that it is planted in, and the attribute that names its class."""

_BACKENDS = ((MlaSession, MLA), (PlannedMhaSession, MHA_PLANNED), (MaskedMhaSession, MHA_MASKED), (MhaSession, MHA))
"""Session classes, and the backend that each is planted in."""


@dataclass(frozen=True)
class DefectGroup:
    """The defects of one layer and one class of bug, collected in `defects`. A defect's title is its docstring."""

    defects: list[Defect]
    layer: Layer
    bug_class: BugClass

    def add(
        self, name: str, source: str, *explained_by: Mistake, coarse: bool = False
    ) -> Callable[[_Mistaken], _Mistaken]:
        """Add the decorated object as a defect: a session, a part of a session, or a function that changes trtllm_mha.

        Sessions and prefills belong to one backend each; other parts are planted in trtllm_mha. With `coarse`, the
        kernels compute like tensor cores, whose rounding hides small errors.
        """

        def decorate(mistaken: _Mistaken) -> _Mistaken:
            backend, plant = MHA, cast("Plant", mistaken)
            if isinstance(mistaken, type):
                session = _session(mistaken)
                backend = next(backend for kind, backend in _BACKENDS if issubclass(session, kind))

                def plant(backend: TrtllmBackend) -> TrtllmBackend:
                    return replace(coarse_kernels(backend) if coarse else backend, session=session)

            title = inspect.cleandoc(mistaken.__doc__ or "")
            self.defects.append(
                AttentionDefect(
                    name, self.layer, self.bug_class, title, source, backend.name, explained_by, plant=plant
                )
            )
            return mistaken

        return decorate


def _session(part: type[Part]) -> Session:
    """Return the session class that is this part, or that contains it."""
    for correct, session, attribute in _PLACES:
        if issubclass(part, correct):
            return type("Session", (session,), {attribute: part})
    return cast("Session", part)
