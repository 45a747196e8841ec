"""Recorded lives of FlashInfer's wrappers: their constructors, plans and runs."""

from pathlib import Path
from typing import Any

import torch
from recorded_calls import recorded_call

from attnfuzz.harness.dumps.recorded import CallStatus, RecordedCall

DECODE, PREFILL = "BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper"
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
