"""FlashInfer's wrappers below SGLang, which plans with metadata on the device, and partly without the library."""

from typing import Any

import torch

from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.wrappers import (
    BatchDecodeWithPagedKVCacheWrapper,
    BatchPrefillWithPagedKVCacheWrapper,
    fast_decode_plan,
)

__all__ = ["DecodeWrapper", "PrefillWrapper", "fast_decode_plan"]


class DecodeWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """The wrapper of decodes."""

    copies_metadata = False


class PrefillWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """The wrapper of prefills and verifies, with the members that SGLang's own fast_prefill_plan uses.

    0.5.23: layers/attention/flashinfer_backend.py:170. It fills the buffers of a graph itself, and plans by the
    compiled module.
    """

    copies_metadata = False
    _float_workspace_buffer = _int_workspace_buffer = _pin_memory_int_workspace_buffer = None
    device = torch.device("cpu")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cached_module = _Module(self)


class _Module:
    """The compiled module of a plan."""

    def __init__(self, wrapper: PrefillWrapper) -> None:
        self._wrapper = wrapper

    def plan(self, *args: Any) -> None:
        """Plan rows and lengths of requests, which are on the host."""
        _, _, _, _, indptr, lengths, *_ = args
        with outside():
            self._wrapper.keep_lengths(lengths, indptr)
