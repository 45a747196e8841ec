"""Answers of modules of recurrent layers that metadata builders ask, and that are stubs here or not unpacked."""

import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import torch

from attnfuzz.kernels.releases.errors import ReleaseError

_LAYER: Final = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"

_BUILDERS: Final = ("vllm.v1.attention.backends.gdn_attn", "vllm.v1.attention.backends.mamba2_attn")
_CHECKPOINTS: Final = "MambaPrefillCheckpointBuilder"

_CHUNKED: Final = ("vllm.third_party.flash_linear_attention.ops", "vllm.model_executor.layers.fla.ops")
"""The package of chunked kernels, and its name before 0.26.0."""

_STATES: Final = "vllm.model_executor.layers.mamba.mamba_utils"
"""The functions that say which part of a state is copied, in a package that is a stub here."""

_COPIES: Final = "vllm.v1.worker.mamba_utils"
"""The copies between blocks, which import these functions."""


class _NoCheckpoints:
    """Plans no checkpoint of a prefix cache, as vLLM does without one (0.33.0: layers/mamba/checkpoint.py:110)."""

    def __init__(self, *_: Any) -> None:
        pass

    def build(self, *_: Any) -> None:
        """Return None."""


def _no_chunks(*_: Any) -> torch.Tensor:
    """Return no chunk: the kernels of this project take rows."""
    return torch.empty(0, 2, dtype=torch.int32)


@cache
def _state_functions(root: Path) -> ModuleType:
    """Import the release's own module of these functions."""
    spec = spec_from_file_location(_STATES, root / Path(*_STATES.split(".")).with_suffix(".py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[_STATES] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copied_whole(loaded: Any) -> Any:
    """Return the function for states that have no window of inputs, after completing the module that copies them."""
    own, copies = vars(_state_functions(loaded.release.root)), loaded.module(_COPIES)
    vars(copies).update({name: own[name] for name in vars(copies).keys() & own.keys() if not name.startswith("_")})
    return own["get_temporal_copy_spec"]


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
