"""The backend that a name of SGLang's says, on the device that it says."""

from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.sglang import tree
from attnfuzz.kernels.sglang.backends import SglangBackend, capability_of
from attnfuzz.kernels.sglang.naming import Named
from attnfuzz.kernels.sglang.on_hopper import hopper_backend_of


def backend_of(named: Named) -> Backend:
    """The backend that a name says. Fetches and imports nothing. Raises ReleaseError for a tree that is none."""
    version = named.version
    if version is None:
        assert named.tree is not None
        version = tree.at(named.tree).version
    if named.gpu:
        return hopper_backend_of(named, version)
    return SglangBackend(named, capability_of(named.kind, version))
