"""The engines that are installed, found through entry points."""

from functools import cache
from importlib.metadata import entry_points

from attnfuzz.harness.backends.defaults import ENGINES
from attnfuzz.kernels.engine import Engine


@cache
def engines() -> tuple[Engine, ...]:
    """Return every engine, by name."""
    found = (point.load() for point in entry_points(group=ENGINES))
    return tuple(sorted(found, key=lambda engine: engine.name))


def engine_of(backend: str) -> Engine | None:
    """Return the engine that a backend's name is one of; None for any other backend."""
    return next((engine for engine in engines() if engine.owns(backend)), None)


def engine_named(name: str) -> Engine | None:
    """Return the engine of that name; None if there is none."""
    return next((engine for engine in engines() if engine.name == name), None)
