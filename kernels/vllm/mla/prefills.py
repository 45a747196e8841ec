"""The backend of a release for prefills of latent attention, its chunks of the prefix, and their merges.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import random
from typing import Any, Final

from attnfuzz.reference.case import Case, Step

_REGISTRY: Final = "vllm.v1.attention.backends.mla.prefill.registry"

_RARELY: Final = 3


def prefill_backend(loaded: Any, case: Case) -> Any:
    """The class of the backend: that of a B200 for DeepSeek-V3's head dims, FlashAttention, in two servers of three.

    The others run trtllm-gen's kernel for packed keys, the default for key and value dims of 256
    (platforms/interface.py:467), which any server may choose (--attention-config.mla_prefill_backend).
    """
    known = loaded.module(_REGISTRY).MLAPrefillBackendEnum
    packed = random.Random(case.seed).randrange(_RARELY) == 0
    return (known.TRTLLM_RAGGED if packed else known.FLASH_ATTN).get_class()


def chunk_capacity(case: Case) -> int:
    """The tokens of the workspace for chunks of prefixes: whole pages, at least one for each request of a step.

    A server has 64 Ki, or fewer for short contexts (mla_attention.py:2329), and a case the capacity of its chunks.
    """
    page, requests = case.geometry.page_size, max(len(step.requests) for step in case.steps)
    return max(1, -(-case.chunk_capacity // page), requests) * page


def merges(case: Case, step: Step) -> int:
    """The most merges of a value: its chunks of the prefix with each other, and with the new tokens.

    Early releases give each request the same part of the workspace, in whole pages (0.26.0: mla_attention.py).
    """
    prefixes = [request.kv_len - request.q_len for request in step.requests if request.q_len]
    with_prefix = [prefix for prefix in prefixes if prefix]
    if not with_prefix:
        return 0
    page = case.geometry.page_size
    part = max(1, chunk_capacity(case) // len(with_prefix) // page) * page
    return 1 + -(-max(with_prefix) // part)
