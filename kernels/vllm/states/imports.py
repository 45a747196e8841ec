"""Answers of modules of recurrent layers that metadata builders ask, and that are stubs here or not unpacked."""

import sys
from types import ModuleType
from typing import Any, Final

import torch

from attnfuzz.kernels.releases.errors import ReleaseError

_LAYER: Final = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"

_BUILDERS: Final = ("vllm.v1.attention.backends.gdn_attn", "vllm.v1.attention.backends.mamba2_attn")
_CHECKPOINTS: Final = "MambaPrefillCheckpointBuilder"

_CHUNKED: Final = ("vllm.third_party.flash_linear_attention.ops", "vllm.model_executor.layers.fla.ops")
"""The package of chunked kernels, and its name before 0.26.0."""


class _NoCheckpoints:
    """Plans no checkpoint of a prefix cache, as vLLM does without one (0.33.0: layers/mamba/checkpoint.py:110)."""

    def __init__(self, *_: Any) -> None:
        pass

    def build(self, *_: Any) -> None:
        """Return None."""


def _no_chunks(*_: Any) -> torch.Tensor:
    """Return no chunk: the kernels of this project take rows."""
    return torch.empty(0, 2, dtype=torch.int32)


def complete(loaded: Any) -> None:
    """Give the metadata builders of a release these answers.

    On a Hopper GPU, prefills run on FlashInfer's kernel (0.33.0: _resolve_gdn_prefill_backend).
    """
    for builders in map(loaded.module, _BUILDERS):
        if hasattr(builders, _CHECKPOINTS):
            setattr(builders, _CHECKPOINTS, _NoCheckpoints)
    for package in _CHUNKED:
        utils, index = (ModuleType(f"{package}.{name}") for name in ("utils", "index"))
        vars(utils)["FLA_CHUNK_SIZE"] = 64
        vars(index).update(prepare_chunk_indices=_no_chunks, prepare_chunk_offsets=_no_chunks)
        sys.modules |= {utils.__name__: utils, index.__name__: index}
    try:
        layer = loaded.module(_LAYER)
    except ReleaseError:
        return
    layer._resolve_gdn_prefill_backend = lambda _config: ("auto", "flashinfer")  # noqa: SLF001 - vLLM's name
