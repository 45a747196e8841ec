"""Variants of a backend: revisions before or after a reported fix, and restrictions to the use by servers.

A backend as served is a separate backend with its own name, in which known failures beyond a server's use hide no
others. Unlike a revision, it has the same bugs.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import msgspec

from attnfuzz.kernels.gpu.gpu_backend import GpuBackend, OpenSession
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.kernels.trtllm.revisions import revised


def as_served(backend: GpuBackend, session: OpenSession | None = None, **without: Any) -> GpuBackend:
    """Restrict the cases drawn for `backend`: `without` are the fields of its capability to replace.

    `session` opens a session whose memory has a server's contents; the default is the backend's own.
    """
    return replace(
        backend,
        name=name_as_served(backend.name),
        session=session or backend.session,
        measured_as=backend.name,
        capability=msgspec.structs.replace(
            backend.capability, **{"arguments": (), "earlier_uses": (), "edges": (), **without}
        ),
    )


def name_as_served(name: str) -> str:
    """Return the name of a backend's restricted variant."""
    return f"{name}_as_served"


_Session = TypeVar("_Session", MhaSession, MlaSession)


def with_revisions(
    backend: GpuBackend, session: type[_Session], table: OpsTable, revisions: Mapping[str, type[_Session]]
) -> tuple[GpuBackend, ...]:
    """Return `backend`, whose session is `session` over `table`, and its revisions."""

    def revision(name: str, before: type[_Session]) -> GpuBackend:
        return replace(backend, name=f"{backend.name}@{name}", session=partial(revised(session, before), table))

    return backend, *(revision(name, before) for name, before in revisions.items())
