"""Variants of a backend: as it was before or after a reported fix, or asked no more than a server asks.

What is known to fail beyond a server's use hides nothing else in the backend as served. Unlike a revision, it has no
bug put in and none taken out; it is a backend like any other, under a name of its own.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from attnfuzz.kernels.gpu.gpu_backend import GpuBackend, OpenSession
from attnfuzz.kernels.ops_table import OpsTable
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.kernels.trtllm.revisions import revised


def as_served(backend: GpuBackend, session: OpenSession | None = None, **without: Any) -> GpuBackend:
    """`backend` with less drawn: `without` are the fields of its capability that are narrower.

    `session` opens a session whose memory holds what a server's does; None takes the backend's own.
    """
    return replace(
        backend,
        name=name_as_served(backend.name),
        session=session or backend.session,
        capability=msgspec.structs.replace(backend.capability, **without),
    )


def name_as_served(name: str) -> str:
    """What the view of a backend is called, if it has one."""
    return f"{name}_as_served"


_Session = TypeVar("_Session", MhaSession, MlaSession)


def with_revisions(
    backend: GpuBackend, session: type[_Session], table: OpsTable, revisions: Mapping[str, type[_Session]]
) -> tuple[GpuBackend, ...]:
    """`backend`, whose session is `session` over `table`, and its revisions."""

    def revision(name: str, before: type[_Session]) -> GpuBackend:
        return replace(backend, name=f"{backend.name}@{name}", session=partial(revised(session, before), table))

    return backend, *(revision(name, before) for name, before in revisions.items())
