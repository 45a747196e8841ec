"""What a call breaks before it is made, and a replay that is planned for another layout than its graph has."""

from types import SimpleNamespace
from typing import Any

import torch

from attnfuzz.kernels.sglang import boundary


def test_a_layout_is_what_says_how_queries_are_padded() -> None:
    metadata = SimpleNamespace(max_seq_len_q=4, sum_seq_lens_q=8, max_seq_len_k=100)
    assert boundary.frozen_layout(metadata) == {"max_seq_len_q": 4}
    assert boundary.frozen_layout(SimpleNamespace(max_seq_len_q=None)) == {}


def test_another_layout_at_the_replay_is_a_breach_with_both_numbers() -> None:
    (breach,) = boundary.layout_breaches({"max_seq_len_q": 4}, SimpleNamespace(max_seq_len_q=1, sum_seq_lens_q=2))
    assert breach.arguments == ("max_seq_len_q",)
    assert "is 1 in the plan of the replay and 4 in the graph" in breach.text


def test_the_same_layout_is_none() -> None:
    assert list(boundary.layout_breaches({"max_seq_len_q": 4}, SimpleNamespace(max_seq_len_q=4))) == []


def test_a_function_that_is_not_known_has_no_duties() -> None:
    assert boundary.breaches("double_kernel", {}) == ()


def fmha_v2_on_halves(pages_apart: int) -> dict[str, Any]:
    """A call on K and V as halves of one allocation of 3 pages, one request of 5 keys on pages of 4."""
    both = torch.zeros(2, 3, 4, 1, 8)
    keys = torch.tensor([[1, 2]], dtype=torch.int32)
    return {
        "qkv": (torch.zeros(1, 2, 8), (both[0], both[1])),
        "input_layout": "Q_PAGED_KV_NHD",
        "workspace_buffer": torch.zeros(64, dtype=torch.uint8),
        "seq_lens": torch.tensor([5], dtype=torch.int32),
        "max_q_len": 1,
        "max_kv_len": 8,
        "bmm1_scale": 1.0,
        "bmm2_scale": 1.0,
        "batch_size": 1,
        "cum_seq_lens_q": torch.tensor([0, 1], dtype=torch.int32),
        "cum_seq_lens_kv": torch.tensor([0, 5], dtype=torch.int32),
        "block_tables": torch.stack([keys, keys + pages_apart], dim=1),
    }


def test_halves_of_one_cache_have_the_duties_of_a_paired_one() -> None:
    assert boundary.breaches("trtllm_fmha_v2_prefill", fmha_v2_on_halves(3)) == ()
    outside = fmha_v2_on_halves(3)
    outside["block_tables"] = outside["block_tables"] + 2
    (breach,) = boundary.breaches("trtllm_fmha_v2_prefill", outside)
    assert breach.arguments == ("block_tables", "qkv[1]")


def test_pages_of_v_begin_where_v_does() -> None:
    (breach,) = boundary.breaches("trtllm_fmha_v2_prefill", fmha_v2_on_halves(2))
    assert "not 3 behind those of K" in breach.text
