"""How a defect gets into a backend: a part of its session, with one method turned wrong, takes the correct one's place.

What a session says that its requests attend to stays true: a defect is in what kernels are told, in the buffers that
they are handed, or in what becomes of their results.
"""

import inspect
from dataclasses import replace
from typing import cast

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.native import coarse_kernels
from attnfuzz.kernels.page_table import PageTable
from attnfuzz.kernels.paged_kv import PagedKv
from attnfuzz.kernels.trtllm.backends import MHA, MLA, TrtllmBackend
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.kernels.trtllm.prefill import MlaPrefill
from attnfuzz.kernels.workspace import SharedWorkspace
from attnfuzz.reference.mistake import Mistake

Session = type[MhaSession] | type[MlaSession]
Part = Session | type[MlaPrefill] | type[PageTable] | type[PagedKv] | type[SharedWorkspace]

_PLACES = (
    (MlaPrefill, MlaSession, "prefill_type"),
    (PageTable, MhaSession, "table_type"),
    (PagedKv, MhaSession, "kv_type"),
    (SharedWorkspace, MhaSession, "workspace_type"),
)
"""Each part of a session, the session that is planted with it, and the attribute that names its class."""


def defect(
    part: Part,
    name: str,
    layer: Layer,
    bug_class: BugClass,
    source: str,
    *,
    coarse: bool = False,
    explained_by: tuple[Mistake, ...] = (),
) -> Defect:
    """The defect of a session, or of a part of one; the class's docstring is its title.

    Sessions and prefills tell by themselves which backend they belong to; other parts are planted in trtllm_mha. With
    `coarse`, it is planted over kernels that compute as tensor cores do, where small errors drown in rounding.
    """
    session = _session(part)

    def plant(backend: TrtllmBackend) -> TrtllmBackend:
        return replace(coarse_kernels(backend) if coarse else backend, session=session)

    return Defect(
        name=name,
        layer=layer,
        bug_class=bug_class,
        title=inspect.cleandoc(part.__doc__ or ""),
        source=source,
        backend=MLA.name if issubclass(session, MlaSession) else MHA.name,
        plant=plant,
        explained_by=explained_by,
    )


def _session(part: Part) -> Session:
    """The session that is, or has, this part."""
    for correct, session, attribute in _PLACES:
        if issubclass(part, correct):
            return type("Session", (session,), {attribute: part})
    return cast("Session", part)
