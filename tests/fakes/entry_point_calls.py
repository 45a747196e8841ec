"""Small calls of every entry point that break no precondition; each test changes one argument."""

from typing import Any

import torch

from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.meaning.entry_point import Breach
from attnfuzz.kernels.native.ops import NATIVE, workspace_bytes

PAGES, PAGE_SIZE, Q_HEADS, KV_HEADS, DIM = 7, 4, 4, 2, 16
RANK, ROPE = 16, 8
Arguments = dict[str, Any]


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def workspace(batch: int, q_len: int, kv_heads: int, dim: int, max_seq_len: int) -> torch.Tensor:
    """Of exactly the size that the native kernels use."""
    need = workspace_bytes(
        batch=batch, q_len=q_len, q_heads=Q_HEADS, kv_heads=kv_heads, head_dim_vo=dim, max_seq_len=max_seq_len
    )
    return torch.zeros(need.total, dtype=torch.uint8)


def tables() -> torch.Tensor:
    """Pages for 9, 0 and 4 tokens; what lies behind is no page."""
    return torch.tensor([[5, 0, 6, -1], [99, 99, 99, 99], [2, -1, 99, 1 << 30]], dtype=torch.int32)


def decode_call(**changes: Any) -> Arguments:
    """Three requests of two queries and 9, 0 and 4 keys."""
    call = {
        "query": torch.zeros(6, Q_HEADS, DIM),
        "kv_cache": tuple(torch.zeros(PAGES, KV_HEADS, PAGE_SIZE, DIM) for _ in range(2)),
        "workspace_buffer": workspace(3, 2, KV_HEADS, DIM, 12),
        "block_tables": tables(),
        "seq_lens": int32(9, 0, 4),
        "max_seq_len": 12,
        "out": torch.zeros(6, Q_HEADS, DIM),
        "lse": torch.zeros(6, Q_HEADS),
        "sinks": torch.zeros(Q_HEADS),
        "q_len_per_req": 2,
    }
    return {**call, **changes}


def xqa_call(**changes: Any) -> Arguments:
    """Two requests of one and three queries, on an NHD cache in one tensor."""
    call = {
        "query": torch.zeros(4, Q_HEADS, DIM),
        "kv_cache": torch.zeros(PAGES, 2, PAGE_SIZE, KV_HEADS, DIM),
        "workspace_buffer": torch.zeros(8 << 20, dtype=torch.uint8),
        "block_tables": tables()[:2],
        "seq_lens": int32(9, 0),
        "max_seq_len": 12,
        "q_cu_seq_lens": int32(0, 1, 4),
        "q_len_per_req": 3,
    }
    return {**call, **changes}


def context_call(**changes: Any) -> Arguments:
    """Three requests of 2, 1 and 3 queries and 9, 0 and 4 keys, and two rows of padding."""
    call = {
        "query": torch.zeros(8, Q_HEADS, DIM),
        "kv_cache": torch.zeros(PAGES, 2, KV_HEADS, PAGE_SIZE, DIM),
        "workspace_buffer": torch.zeros(0, dtype=torch.uint8),
        "block_tables": tables(),
        "seq_lens": int32(9, 0, 4),
        "max_q_len": 3,
        "max_kv_len": 9,
        "bmm1_scale": 0.25,
        "bmm2_scale": 1.0,
        "batch_size": 3,
        "cum_seq_lens_q": int32(0, 2, 3, 6),
        "cum_seq_lens_kv": int32(0, 9, 9, 13),
        "out": torch.zeros(8, Q_HEADS, DIM),
        "lse": torch.zeros(8, Q_HEADS),
    }
    return {**call, **changes}


def masked_context_call(**changes: Any) -> Arguments:
    """The context call with masks of 2 * 9, no and 3 * 4 bits."""
    masks = {"packed_custom_mask": torch.full((5,), 255, dtype=torch.uint8), "mask_indptr": int32(0, 3, 3, 5)}
    return {**context_call(), **masks, **changes}


def fmha_v2_call(**changes: Any) -> Arguments:
    """What the context call asks for, on the SM90 kernel's interface and an NHD cache."""
    paged = (torch.zeros(8, Q_HEADS, DIM), torch.zeros(PAGES, 2, PAGE_SIZE, KV_HEADS, DIM))
    call = {
        **{name: value for name, value in context_call().items() if name not in ("query", "kv_cache", "lse")},
        "qkv": paged,
        "input_layout": "Q_PAGED_KV_NHD",
    }
    return {**call, **changes}


def halves(pages_apart: int = PAGES, table: torch.Tensor | None = None) -> Arguments:
    """What differs in a call of fmha_v2 on K and V as halves of one allocation, V's page ids so many above K's."""
    key, value = torch.zeros(2, PAGES, PAGE_SIZE, KV_HEADS, DIM)
    keys = tables() if table is None else table
    return {
        "qkv": (torch.zeros(8, Q_HEADS, DIM), (key, value)),
        "block_tables": torch.stack((keys, keys + pages_apart), dim=1),
    }


def ragged_call(**changes: Any) -> Arguments:
    """Three requests of 2, 1 and 3 queries and 5, 0 and 3 packed keys."""
    call = {
        "query": torch.zeros(6, Q_HEADS, DIM),
        "key": torch.zeros(8, Q_HEADS, DIM),
        "value": torch.zeros(8, Q_HEADS, DIM),
        "workspace_buffer": torch.zeros(0, dtype=torch.uint8),
        "seq_lens": int32(5, 0, 3),
        "max_q_len": 3,
        "max_kv_len": 5,
        "bmm1_scale": 0.25,
        "bmm2_scale": 1.0,
        "o_sf_scale": 1.0,
        "batch_size": 3,
        "window_left": -1,
        "cum_seq_lens_q": int32(0, 2, 3, 6),
        "cum_seq_lens_kv": int32(0, 5, 5, 8),
        "enable_pdl": False,
        "is_causal": False,
        "return_lse": True,
        "out": torch.zeros(6, Q_HEADS, DIM),
        "lse": torch.zeros(6, Q_HEADS),
    }
    return {**call, **changes}


def mla_call(**changes: Any) -> Arguments:
    """Three requests of two queries and 9, 0 and 4 latents."""
    call = {
        "query": torch.zeros(3, 2, Q_HEADS, RANK + ROPE),
        "kv_cache": torch.zeros(PAGES, PAGE_SIZE, RANK + ROPE),
        "workspace_buffer": workspace(3, 2, 1, RANK, 12),
        "qk_nope_head_dim": 8,
        "kv_lora_rank": RANK,
        "qk_rope_head_dim": ROPE,
        "block_tables": tables(),
        "seq_lens": int32(9, 0, 4),
        "max_seq_len": 12,
        "out": torch.zeros(3, 2, Q_HEADS, RANK),
        "lse": torch.zeros(6, Q_HEADS),
    }
    return {**call, **changes}


def merge_in_place_call(**changes: Any) -> Arguments:
    call = {
        "v": torch.zeros(6, Q_HEADS, DIM),
        "s": torch.zeros(6, Q_HEADS),
        "v_other": torch.zeros(6, Q_HEADS, DIM),
        "s_other": torch.zeros(6, Q_HEADS),
    }
    return {**call, **changes}


def merge_call(**changes: Any) -> Arguments:
    call = {
        "v_a": torch.zeros(6, Q_HEADS, DIM),
        "s_a": torch.zeros(6, Q_HEADS),
        "v_b": torch.zeros(6, Q_HEADS, DIM),
        "s_b": torch.zeros(6, Q_HEADS),
    }
    return {**call, **changes}


def fixup_call(**changes: Any) -> Arguments:
    """Requests of 2, 1 and 3 rows, of which the second has no keys."""
    call = {
        "out": torch.zeros(8, Q_HEADS, DIM),
        "lse": torch.zeros(8, Q_HEADS),
        "kv_lens": int32(5, 0, 3),
        "cum_seq_lens": int32(0, 2, 3, 6),
        "max_seq_len": 3,
    }
    return {**call, **changes}


CALLS = {
    NATIVE.decode.name: decode_call,
    "xqa_batch_decode_with_kv_cache": xqa_call,
    NATIVE.context.name: context_call,
    "trtllm_batch_context_with_custom_mask": masked_context_call,
    "trtllm_fmha_v2_prefill": fmha_v2_call,
    NATIVE.ragged.name: ragged_call,
    NATIVE.mla_decode.name: mla_call,
    NATIVE.merge_state_in_place.name: merge_in_place_call,
    "merge_state": merge_call,
    NATIVE.fixup.name: fixup_call,
}
"""What makes a call of each entry point."""


def breaches(op: str, **changes: Any) -> tuple[Breach, ...]:
    """What a call with these changes breaks."""
    return ENTRY_POINTS[op].breaches(CALLS[op](**changes))
