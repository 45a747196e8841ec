"""What is done before workers for a release of SGLang are forked: each of them would take seconds for it."""

import importlib

from attnfuzz.kernels.sglang.loader import load
from attnfuzz.kernels.sglang.release import release_of

_SESSIONS = ("attnfuzz.kernels.sglang.mha", "attnfuzz.kernels.sglang.mla")
"""What opens sessions on a release: imported with it, and in no other process."""


def load_release(name: str) -> None:
    """Import the release called `name` (sglang==VERSION or sglang@PATH). Raises ReleaseError."""
    load(release_of(name))
    for module in _SESSIONS:
        importlib.import_module(module)
