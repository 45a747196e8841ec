"""The default backends, and the engines: those that ship with attnfuzz, and installed packages'."""

from functools import cache
from typing import TYPE_CHECKING

from attnfuzz.kernels.interface.guests import offered

if TYPE_CHECKING:
    # The pytest plugin imports this module in every test run.
    from attnfuzz.kernels.interface.engine import Engine

DEFAULT_BACKENDS = ("trtllm_mha", "trtllm_mla", "torch_sdpa")

DEFAULT_BACKENDS_ON_GPU = ("trtllm_mha", "trtllm_mla")
"""Defaults with --device cuda, on the visible GPU's architecture."""

LIBRARIES = "libraries"
"""Stands for all backends of libraries that can run here."""

ENGINES = "attnfuzz.engines"
"""The entry point group in which a package offers an Engine (`kernels.interface.engine`)."""


@cache
def engine_names() -> tuple[str, ...]:
    """Return the names of all engines without importing them, since their offers have the engines' names."""
    return tuple(point.name for point in offered(ENGINES))


@cache
def engines() -> "tuple[Engine, ...]":
    """Return all engines, by name."""
    found = (point.load() for point in offered(ENGINES))
    return tuple(sorted(found, key=lambda engine: engine.name))


def engine_of(backend: str) -> "Engine | None":
    """Return the engine that owns a backend's name, or None."""
    return next((engine for engine in engines() if engine.owns(backend)), None)


def engine_named(name: str) -> "Engine | None":
    """Return the engine of that name, or None."""
    return next((engine for engine in engines() if engine.name == name), None)
