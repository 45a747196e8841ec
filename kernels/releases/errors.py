"""Errors about a requested release. Each message is a line with the problem and its remedy."""

from attnfuzz.kernels.interface.engine import EngineError


class ReleaseError(EngineError):
    """A release of an engine that cannot be used: unknown, not to be had, changed, incomplete, or failing to import."""


class Moved(ReleaseError):
    """A module, class or function of a release that is not at its known place."""
