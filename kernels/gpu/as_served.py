"""Views of backends that are asked no more than a server asks: what is known to fail beyond that hides nothing else.

A view has no bug put in and none taken out, as revisions do. It is a backend like any other, under a name of its own.
"""

from dataclasses import replace
from typing import Any

import msgspec

from attnfuzz.kernels.gpu.gpu_backend import GpuBackend, OpenSession


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
