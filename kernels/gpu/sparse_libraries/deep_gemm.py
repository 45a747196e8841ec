"""DeepGEMM's scores of an indexer on Hopper, from the wheel sgl-deep-gemm, which compiles kernels when they are called.

The functions' arguments are those of csrc/apis/attention.hpp. Releases from 0.2 on have no names without fp4.
"""

import importlib
from typing import Any, Final

import torch
from msgspec.structs import replace

from attnfuzz.kernels.gpu.alignment import aligned
from attnfuzz.kernels.gpu.sparse_libraries.prebuilt import PrebuiltSparse, on_gpu
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse.case import SparseMode, SparseOp

_MOST_QUERIES: Final = 2
"""Queries of a request: "next_n == 1 or next_n == 2" (sm90_fp8_mqa_logits.hpp in 0.1.5.post1)."""


def fp8_mqa_logits(
    *,
    q: torch.Tensor,
    kv: torch.Tensor,
    kv_scales: torch.Tensor,
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    """Score packed keys. Columns that a row does not see stay undefined, as without `clean_logits`."""
    if not logits.numel():
        return
    library: Any = importlib.import_module("deep_gemm")
    function = getattr(library, "fp8_mqa_logits", None) or library.fp8_fp4_mqa_logits
    # Bulk copies (TMA) take addresses that are multiples of 16.
    keys = (kv, aligned(kv_scales))
    logits.copy_(function(q, keys, weights, cu_seq_len_k_start, cu_seq_len_k_end, max_seqlen_k=0))


def fp8_paged_mqa_logits(
    *,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    next_n: int,
    logits: torch.Tensor,
) -> None:
    """Score keys in pages, with a schedule for all multiprocessors. Columns behind a row's keys stay undefined.

    Each query has a length: "Only 2D context lens is supported for now" (get_paged_mqa_logits_metadata).
    """
    if not logits.numel():
        return
    if next_n > _MOST_QUERIES:
        raise Unsupported(f"{next_n} queries of a request")
    library: Any = importlib.import_module("deep_gemm")
    function = getattr(library, "fp8_paged_mqa_logits", None) or library.fp8_fp4_paged_mqa_logits
    ends = torch.arange(1 - next_n, 1, dtype=torch.int32, device=q.device)
    lengths = (context_lens.unsqueeze(1) + ends).clamp(min=0)
    schedule = library.get_paged_mqa_logits_metadata(lengths, page_size, library.get_num_sms())
    made = function(
        q.view(-1, next_n, *q.shape[1:]),
        kv_cache.view(len(kv_cache), page_size, 1, -1),
        weights,
        lengths,
        block_table,
        schedule,
        logits.shape[1],
    )
    logits.copy_(made)


_SHARED: Final[dict[str, Any]] = {
    "packages": {"sgl-deep-gemm": "0.1.5"},
    "alone": frozenset({"sgl-deep-gemm"}),
    # Hopper's tensor cores add products of fp8 with about 14 bits (DeepSeek-V3 Technical Report, section 3.3.2); heads
    # are added in fp32 (sm90_fp8_mqa_logits.cuh).
    "noise_models": {DType.FLOAT8_E4M3: replace(NoiseModel.fp32_arithmetic(), logits=2.0**-13)},
}
_LOGITS: Final[dict[str, Any]] = {
    "chains": ((SparseOp.LOGITS,),),
    "cleans": False,
    # The kernels compile for seconds at their first call.
    "patience": 20.0,
    "heads": (32, 64),
    "index_dims": (64, 128),
    "ragged": (False,),
}
MQA_LOGITS: Final = PrebuiltSparse(
    label="deep_gemm:mqa_logits",
    functions={"logits": fp8_mqa_logits},
    capability=on_gpu(modes=(SparseMode.PREFILL, SparseMode.EXTEND), gaps=False, replays=False, **_LOGITS),
    **_SHARED,
)
PAGED_MQA_LOGITS: Final = PrebuiltSparse(
    label="deep_gemm:paged_mqa_logits",
    functions={"paged_logits": fp8_paged_mqa_logits},
    capability=on_gpu(
        modes=(SparseMode.DECODE, SparseMode.VERIFY, SparseMode.IDLE),
        # arch_major == 9 and block_kv == 64
        page_sizes=(64,),
        **_LOGITS,
    ),
    **_SHARED,
)
DEEP_GEMM: Final = (MQA_LOGITS, PAGED_MQA_LOGITS)
