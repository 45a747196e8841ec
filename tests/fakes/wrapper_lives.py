"""Recorded lives of FlashInfer's wrappers: their constructors, plans and runs."""

from pathlib import Path
from typing import Any

import torch
from recorded_calls import recorded_call

from attnfuzz.harness.dumps.recorded import CallStatus, RecordedCall

DECODE, PREFILL = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"
MLA = "BatchMLAPagedAttentionWrapper"
DIM, PAGE = 16, 4
LISTS = {
    "indptr": torch.tensor([0, 2, 2, 3], dtype=torch.int32),
    "indices": torch.tensor([5, 1, 3], dtype=torch.int32),
    "last_page_len": torch.tensor([3, 0, 4], dtype=torch.int32),
}
"""Of three requests with 7, 0 and 4 keys."""
DECODE_PLAN = LISTS | {"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": DIM, "page_size": PAGE}
PREFILL_PLAN = {f"paged_kv_{name}": value for name, value in LISTS.items()} | {
    "qo_indptr": torch.tensor([0, 3, 4, 6], dtype=torch.int32),
    "head_dim_qk": DIM,
    "page_size": PAGE,
    "causal": True,
}


def tensors(rows: int) -> dict[str, Any]:
    """What run is given, in the layout NHD."""
    generator = torch.Generator().manual_seed(3)
    pools = tuple(torch.randn(6, PAGE, 2, DIM, generator=generator) for _ in range(2))
    return {"q": torch.randn(rows, 4, DIM, generator=generator), "paged_kv_cache": pools}


def method(name: str, arguments: dict[str, Any], self_id: int = 9) -> RecordedCall:
    return recorded_call(name, arguments, self_id=self_id, folder=Path(name), status=CallStatus.COMPLETED)


def life(
    wrapper: str,
    plan: dict[str, Any],
    run: dict[str, Any] | None = None,
    begin: dict[str, Any] | None = None,
    rows: int = 3,
) -> list[RecordedCall]:
    """A wrapper's __init__, plan and run, with these arguments beside the usual ones."""
    workspace = {"float_workspace_buffer": torch.zeros(1 << 16, dtype=torch.uint8)}
    return [
        method(f"{wrapper}.__init__", workspace | (begin or {})),
        method(f"{wrapper}.plan", plan),
        method(f"{wrapper}.run", tensors(rows) | (run or {})),
    ]


def life_of_latents(*, pairs: bool = False, **plan: Any) -> list[RecordedCall]:
    """That of the MLA wrapper, with queries and latents in two parts: as pairs, or as the deprecated arguments."""
    generator = torch.Generator().manual_seed(3)

    def parts(*shape: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.randn(*shape, dim, generator=generator, dtype=torch.bfloat16) for dim in (512, 64))

    lists = {
        "qo_indptr": torch.tensor([0, 1, 2], dtype=torch.int32),
        "kv_indptr": torch.tensor([0, 2, 3], dtype=torch.int32),
        "kv_indices": LISTS["indices"],
        "kv_len_arr": torch.tensor([7, 4], dtype=torch.int32),
    }
    layer = {"num_heads": 4, "head_dim_ckv": 512, "head_dim_kpe": 64, "page_size": PAGE, "causal": True}
    kinds = {"sm_scale": 0.07, "q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    query, pool = parts(2, 4), parts(6, PAGE)
    given: dict[str, Any] = {"query": query, "kv_cache": pool}
    if not pairs:
        given = dict(zip(("q_nope", "q_pe", "ckv_cache", "kpe_cache"), (*query, *pool), strict=True))
    return [
        method(f"{MLA}.__init__", {"float_workspace_buffer": torch.zeros(1 << 16, dtype=torch.uint8)}),
        method(f"{MLA}.plan", lists | layer | kinds | plan),
        method(f"{MLA}.run", given | {"return_lse": True}),
    ]
