"""The TRT-LLM backends on a GPU as they were before or after a reported fix."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.ops_table import OpsTable
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.kernels.trtllm.revisions import revised

_Session = TypeVar("_Session", MhaSession, MlaSession)


def with_revisions(
    backend: GpuBackend, session: type[_Session], table: OpsTable, revisions: Mapping[str, type[_Session]]
) -> tuple[GpuBackend, ...]:
    """`backend`, whose session is `session` over `table`, and its revisions."""

    def revision(name: str, before: type[_Session]) -> GpuBackend:
        return replace(backend, name=f"{backend.name}@{name}", session=partial(revised(session, before), table))

    return backend, *(revision(name, before) for name, before in revisions.items())
