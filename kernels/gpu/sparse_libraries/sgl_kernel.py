"""SGLang's top-k of sparse attention, alone or with a transform, from the wheel sglang-kernel.

Only its library for Hopper is loaded, sgl_kernel/sm90/common_ops.abi3.so, so the rest of the wheel may be missing. The
kernels are those of sgl-kernel/csrc/elementwise/topk.cu.
"""

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from attnfuzz.kernels.gpu.sparse_libraries.prebuilt import PrebuiltSparse, on_gpu
from attnfuzz.reference.sparse.case import Scores, SparseOp


@cache
def operators() -> Any:
    """Load the library, and return its operators."""
    spec = importlib.util.find_spec("sgl_kernel")
    folders = (spec and spec.submodule_search_locations) or ()
    files = [path for each in folders for path in Path(each).glob("sm90/common_ops.*")]
    if not files:
        raise FileNotFoundError("sgl_kernel/sm90 has no common_ops.abi3.so: install the wheel sglang-kernel")
    torch.ops.load_library(files[0])
    return torch.ops.sgl_kernel


def _filled(lists: torch.Tensor, fill: Callable[[torch.Tensor], None]) -> None:
    """Let a kernel fill lists, through others if there are gaps between them: it takes contiguous ones."""
    if not len(lists):
        return
    if lists.is_contiguous():
        fill(lists)
    else:
        made = torch.empty(lists.shape, dtype=lists.dtype, device=lists.device)
        fill(made)
        lists.copy_(made)


def fast_topk(
    *, scores: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor, row_starts: torch.Tensor | None = None
) -> None:
    """List positions, which count from a row's start."""
    _filled(indices, lambda made: operators().fast_topk(scores, made, lengths, row_starts))


def fast_topk_transform_fused(
    *,
    scores: torch.Tensor,
    lengths: torch.Tensor,
    block_table: torch.Tensor,
    requests: torch.Tensor,
    slots: torch.Tensor,
    row_starts: torch.Tensor | None = None,
) -> None:
    """List slots, through a table that has a slot for each position of a request, the rows of which are adjacent."""
    each = torch.arange(len(block_table) + 1, dtype=torch.int32, device=requests.device)
    firsts = torch.searchsorted(requests, each, out_int32=True)
    _filled(
        slots,
        lambda made: operators().fast_topk_transform_fused(scores, lengths, made, block_table, firsts, row_starts),
    )


def fast_topk_transform_ragged_fused(
    *,
    scores: torch.Tensor,
    lengths: torch.Tensor,
    offsets: torch.Tensor,
    slots: torch.Tensor,
    row_starts: torch.Tensor | None = None,
) -> None:
    """List places in the packed keys of a prefill."""
    _filled(
        slots, lambda made: operators().fast_topk_transform_ragged_fused(scores, lengths, made, offsets, row_starts)
    )


_SHARED: Final[dict[str, Any]] = {
    "packages": {"sglang-kernel": "0.4.0"},
    "alone": frozenset({"sglang-kernel"}),
}
_LISTS: Final[dict[str, Any]] = {
    # "only optimized for deepseek v3.2 model, where topk=2048" (fast_topk_v2)
    "top_ks": (2048,),
    # Docstrings promise no order of NaN.
    "scores": tuple(each for each in Scores if each is not Scores.NAN),
}
TOP_K: Final = PrebuiltSparse(
    label="sgl_kernel:top_k",
    functions={"top_k": fast_topk},
    capability=on_gpu(chains=((SparseOp.TOP_K,),), **_LISTS),
    **_SHARED,
)
TOP_K_TRANSFORM: Final = PrebuiltSparse(
    label="sgl_kernel:top_k_transform",
    functions={"top_k_slots": fast_topk_transform_fused, "top_k_offsets": fast_topk_transform_ragged_fused},
    capability=on_gpu(
        chains=((SparseOp.TOP_K, SparseOp.TRANSFORM),),
        fused=True,
        # "NOTE: page size should be 1" (fast_topk_transform_fused)
        page_sizes=(1,),
        **_LISTS,
    ),
    **_SHARED,
)
SGL_KERNEL: Final = (TOP_K, TOP_K_TRANSFORM)
