"""What is done before workers for a release of SGLang are forked: each of them would take seconds for it."""

import importlib

from attnfuzz.kernels.gpu.visible import no_gpu_visible
from attnfuzz.kernels.sglang.loader import load
from attnfuzz.kernels.sglang.release import release_of

_SESSIONS = ("attnfuzz.kernels.sglang.mha", "attnfuzz.kernels.sglang.mla")
"""What opens sessions on a release: imported with it, and in no other process."""


def load_release(name: str) -> None:
    """Import the release called `name` (sglang==VERSION or sglang@PATH) for the CPU. Raises ReleaseError."""
    _load(name, hopper=False)


def load_release_for_hopper(name: str) -> None:
    """Import it for workers that get a Hopper GPU. Raises ReleaseError."""
    with no_gpu_visible():
        _load(name, hopper=True)


def _load(name: str, *, hopper: bool) -> None:
    load(release_of(name), hopper=hopper)
    for module in _SESSIONS:
        importlib.import_module(module)
