"""Ragged attention to no keys; drawn cases of the backends have the rest."""

from typing import Any

import pytest
import torch
from entry_point_calls import int32

from attnfuzz.kernels.native import ops

STALE = 7.0


def ragged(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **arguments: Any) -> Any:
    """The kernel, with those arguments that do not matter filled in."""
    return ops.trtllm_ragged_attention_deepseek(
        query=query,
        key=key,
        value=value,
        workspace_buffer=torch.empty(0, dtype=torch.uint8),
        max_q_len=len(query),
        max_kv_len=len(key),
        bmm2_scale=0.5,
        o_sf_scale=1.0,
        enable_pdl=None,
        return_lse=True,
        **arguments,
    )


def one_request(*, q_len: int, **arguments: Any) -> Any:
    """A request without keys."""
    return ragged(
        torch.zeros(q_len, 1, 8),
        torch.zeros(0, 1, 8),
        torch.zeros(0, 1, 8),
        seq_lens=int32(0),
        bmm1_scale=1.0,
        batch_size=1,
        window_left=-1,
        cum_seq_lens_q=int32(0, q_len),
        cum_seq_lens_kv=int32(0, 0),
        is_causal=False,
        **arguments,
    )


@pytest.mark.parametrize("mirrors", [True, False])
def test_rows_without_keys_stay_unwritten_unless_both_mirrors_are_given(mirrors: bool) -> None:
    stale = {"out": torch.full((2, 1, 8), STALE), "lse": torch.full((2, 1), STALE)}
    lengths = {"q_seq_lens_cpu": int32(2), "kv_seq_lens_cpu": int32(0)} if mirrors else {}
    out, lse = one_request(q_len=2, **stale, **lengths)
    assert out.eq(0 if mirrors else STALE).all()
    assert lse.eq(-torch.inf if mirrors else STALE).all()


def test_one_mirror_alone_is_rejected() -> None:
    with pytest.raises(ValueError, match="given together"):
        one_request(q_len=1, kv_seq_lens_cpu=int32(0))
