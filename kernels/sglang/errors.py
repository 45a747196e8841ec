"""Errors about a requested release. Each message is a line with the problem and its remedy."""

from attnfuzz.kernels.engine import EngineError


class ReleaseError(EngineError):
    """A release of SGLang that cannot be used."""


class NoSuchRelease(ReleaseError):
    """A version that was never released, or that is too old to be run."""


class CannotFetch(ReleaseError):
    """A wheel that is not in the cache and could not be downloaded, or not stored."""


class WrongHash(ReleaseError):
    """A wheel whose content differs from the known one of its version."""


class NotATree(ReleaseError):
    """A folder without source of SGLang, or without its version."""


class CannotImport(ReleaseError):
    """A release whose modules fail to import."""


class Moved(ReleaseError):
    """A module, class or function of SGLang that is not at its known place."""
