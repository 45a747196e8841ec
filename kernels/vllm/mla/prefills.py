"""The prefill backend of a release's latent attention: its choice, its chunks of the prefix, and their merges.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from attnfuzz.kernels.releases.stand_ins import entry
from attnfuzz.kernels.vllm.adaptations import PREFILL_FLAGS
from attnfuzz.kernels.vllm.mla.kernels import flash_attn_varlen_func
from attnfuzz.reference.case import Case

MLA: Final = "vllm.model_executor.layers.attention.mla_attention"
"""The module of the layer, and of the code that all MLA backends share."""

_RAGGED: Final = "trtllm_ragged_attention_deepseek"

_PREFILLS: Final = "vllm.v1.attention.backends.mla.prefill"


def set_prefills(loaded: Any) -> None:
    """Make the layer's module select the kind's prefill backend, whatever the head dims, which may not be a model's.

    A B200 has FlashAttention for DeepSeek-V3's head dims, and trtllm-gen's kernel for packed keys for key and value
    dims of 256 (platforms/interface.py:467); any server may choose (--attention-config.mla_prefill_backend).
    """
    module, packed = loaded.module(MLA), loaded.kind.packed_prefills
    if loaded.release.version in PREFILL_FLAGS:
        module.flash_attn_varlen_func = flash_attn_varlen_func
        module.use_flashinfer_prefill = module.use_cudnn_prefill = lambda: False
        module.use_trtllm_ragged_deepseek_prefill = lambda: packed
        return
    loaded.module(f"{_PREFILLS}.flash_attn").flash_attn_varlen_func = flash_attn_varlen_func
    known = loaded.module(f"{_PREFILLS}.registry").MLAPrefillBackendEnum
    chosen = (known.TRTLLM_RAGGED if packed else known.FLASH_ATTN).get_class()
    module.get_mla_prefill_backend = lambda _: chosen


@contextmanager
def prefills_on_stand_ins() -> Iterator[None]:
    """Replace FlashInfer's function for packed keys by a stand-in.

    It is imported where it is called (v1/attention/backends/mla/prefill/trtllm_ragged.py:148).
    """
    with mock.patch.object(importlib.import_module("flashinfer.prefill"), _RAGGED, entry(_RAGGED)):
        yield


def most_requests(case: Case) -> int:
    """Return the maximum number of requests in a step."""
    return max(len(step.requests) for step in case.steps)


def chunk_capacity(case: Case, requests: int) -> int:
    """Return the size of the workspace for chunks of prefixes, in tokens: whole pages, at least one per request.

    A server has 64 Ki, or fewer for short contexts (mla_attention.py:2329); a case has its `chunk_capacity`.
    """
    page = case.geometry.page_size
    return max(1, -(-case.chunk_capacity // page), requests) * page


def merges(case: Case, prefixes: Sequence[int], capacity: int) -> int:
    """Return the maximum number of merges of one output value: of chunks of the prefix, and with the new tokens.

    The `prefixes` are read in chunks of `capacity` tokens. Early releases give each request the same part of the
    workspace, in whole pages (0.26.0: mla_attention.py).
    """
    with_prefix = [prefix for prefix in prefixes if prefix]
    if not with_prefix:
        return 0
    page = case.geometry.page_size
    part = max(1, capacity // len(with_prefix) // page) * page
    return 1 + -(-max(with_prefix) // part)
