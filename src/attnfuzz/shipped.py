"""The guests that ship with attnfuzz, by group, as the entry points that a package of their own would declare.

The core finds them here (`kernels/interface/guests.py`), and imports none. A source tree has them without being
installed.
"""

from collections.abc import Mapping
from typing import Final

SHIPPED: Final[Mapping[str, Mapping[str, str]]] = {
    "attnfuzz.engines": {
        "sglang": "attnfuzz.kernels.sglang.engine:ENGINE",
        "vllm": "attnfuzz.kernels.vllm.engine:ENGINE",
    },
    "attnfuzz.collections": {
        "trtllm": "attnfuzz.kernels.trtllm.backends:backends",
        "torch": "attnfuzz.kernels.libraries.torch_sdpa:backends",
        "writers": "attnfuzz.kernels.cache_writes.revisions:backends",
        "libraries": "attnfuzz.kernels.libraries.catalogue:backends",
        "gpu": "attnfuzz.kernels.gpu.catalogue:backends",
    },
    "attnfuzz.functions": {"flashinfer": "attnfuzz.kernels.entry_points.catalogue:ENTRY_POINTS"},
    "attnfuzz.planted": {"defects": "attnfuzz.kernels.defects.catalogue"},
    "attnfuzz.toolchains": {"flashinfer": "attnfuzz.kernels.gpu.toolchain"},
}
"""Each group maps names to "module:attribute"."""
