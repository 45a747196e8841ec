"""How a defect gets into a backend: a part of its session, with one method turned wrong, takes the correct one's place.

What a session says that its requests attend to stays true: a defect is in what kernels are told, in the buffers that
they are handed, or in what becomes of their results.
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

Session = type[MhaSession] | type[MlaSession]
Part = MhaSession | MlaSession | MlaPrefill | PageTable | PagedKv | SharedWorkspace

_PartType = TypeVar("_PartType", bound=type[Part])

_PLACES = (
    (MlaPrefill, MlaSession, "prefill_type"),
    (PageTable, MhaSession, "table_type"),
    (PagedKv, MhaSession, "kv_type"),
    (SharedWorkspace, MhaSession, "workspace_type"),
)
"""Each part of a session, the session that is planted with it, and the attribute that names its class."""


class Planted(list[Defect]):
    """Defects of sessions and of parts of sessions; a defect's title is the docstring of its class."""

    def add(
        self, name: str, layer: Layer, bug_class: BugClass, source: str, *, coarse: bool = False
    ) -> Callable[[_PartType], _PartType]:
        """Add the decorated class as a defect.

        Sessions and prefills belong to one backend each; other parts are planted in trtllm_mha. With `coarse`, the
        defect is planted over kernels that compute as tensor cores do, where rounding hides small errors.
        """

        def decorate(part: _PartType) -> _PartType:
            session = _session(part)

            def plant(backend: TrtllmBackend) -> TrtllmBackend:
                return replace(coarse_kernels(backend) if coarse else backend, session=session)

            title = inspect.cleandoc(part.__doc__ or "")
            backend = MLA.name if issubclass(session, MlaSession) else MHA.name
            self.append(Defect(name, layer, bug_class, title, source, backend, plant))
            return part

        return decorate


def _session(part: type[Part]) -> Session:
    """The session that is, or has, this part."""
    for correct, session, attribute in _PLACES:
        if issubclass(part, correct):
            return type("Session", (session,), {attribute: part})
    return cast("Session", part)
