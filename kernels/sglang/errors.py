"""What may be wrong with a release that was asked for. Each message is a line: what is wrong, and what to do."""

from attnfuzz.kernels.engine import EngineError


class ReleaseError(EngineError):
    """A release of SGLang that cannot be used."""


class NoSuchRelease(ReleaseError):
    """A version that was never released, or that is too old to be driven."""


class CannotFetch(ReleaseError):
    """A wheel that is not in the cache and could not be downloaded, or not stored."""


class WrongHash(ReleaseError):
    """A wheel whose content is not what is known of its version."""


class NotATree(ReleaseError):
    """A folder that holds no source of SGLang, or does not say which version."""


class CannotImport(ReleaseError):
    """A release whose modules fail to import."""


class Moved(ReleaseError):
    """A module, class or function of SGLang that is not where its version was known to have it."""
