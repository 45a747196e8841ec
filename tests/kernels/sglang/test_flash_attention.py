"""FlashAttention's stand-ins below SGLang, alone: masks, latents, and what the library checks."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, below
from attnfuzz.kernels.sglang.flash_attention import (
    flash_attn_varlen_func,
    flash_attn_with_kvcache,
    get_scheduler_metadata,
    merge_state_v2,
)
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

PAGE = 4
GEOMETRY = Geometry(
    q_heads=1, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=PAGE, dtype=DType.FLOAT32, kv_dtype=DType.FLOAT32
)
STEP = Step(mode=Mode.DECODE, requests=(Request(0, 1, 1),), padded_tokens=1, tokens_per_request=1)


@pytest.fixture(autouse=True)
def bench(bench_of: Callable[[Case], Bench]) -> Iterator[Bench]:
    """The bench on which a release runs."""
    made = bench_of(Case(backend="trtllm_mha", geometry=GEOMETRY, steps=(STEP,)))
    with below(Version("0.7.2"), made, KernelsBelow(())):
        yield made


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def arguments(dim: int, rows: int, **more: Any) -> dict[str, Any]:
    """The arguments for one request with six keys on pages 1 and 2."""
    torch.manual_seed(0)
    return {
        "q": torch.randn(rows, 1, dim),
        "k_cache": torch.randn(3, PAGE, 1, dim),
        "v_cache": torch.randn(3, PAGE, 1, dim),
        "page_table": ints(1, 2)[None],
        "cache_seqlens": ints(6),
        "cu_seqlens_q": ints(0, rows),
        "max_seqlen_q": rows,
        "softmax_scale": 0.5,
        "causal": True,
        **more,
    }


def due(given: dict[str, Any], seen: list[int]) -> torch.Tensor:
    """The attention of each row to the first `seen` keys of the pages."""
    keys, values = (given[name][1:].flatten(0, 1)[:, 0] for name in ("k_cache", "v_cache"))
    rows = [
        torch.softmax(0.5 * query @ keys[:count].T, dim=-1) @ values[:count]
        for query, count in zip(given["q"], seen, strict=True)
    ]
    return torch.stack(rows)


def test_rows_attend_to_the_keys_of_the_page_table_up_to_their_own() -> None:
    given = arguments(8, 2, scheduler_metadata=get_scheduler_metadata(1, cu_seqlens_q=ints(0, 2), num_splits=0))
    out, lse, *_ = flash_attn_with_kvcache(**given, return_softmax_lse=True)
    torch.testing.assert_close(out, due(given, [5, 6]))
    logits = 0.5 * given["q"][1, 0] @ given["k_cache"][1:].flatten(0, 1)[:6, 0].T
    torch.testing.assert_close(lse[0, 1], logits.logsumexp(0))


@pytest.mark.parametrize(("dim", "seen"), [(8, 6), (96, 5)])
def test_a_stated_maximum_of_one_row_leaves_out_the_causal_mask_of_narrow_heads(dim: int, seen: int) -> None:
    given = arguments(dim, 2, max_seqlen_q=1)
    torch.testing.assert_close(flash_attn_with_kvcache(**given), due(given, [seen, 6]))


def test_queries_for_values_are_added_to_those_for_keys(bench: Bench) -> None:
    cache = bench.memory.copy("cache", torch.randn(3, PAGE, 1, 12))
    parts = {"k_cache": cache[..., 8:], "v_cache": cache[..., :8]}
    given = arguments(4, 2, **parts, qv=torch.randn(2, 1, 8))
    whole = {**given, "q": torch.cat((given["qv"], given["q"]), dim=-1), "k_cache": cache}
    torch.testing.assert_close(flash_attn_with_kvcache(**given), due(whole, [5, 6]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_table": ints(1, 2).expand(2, 2)}, "batch_size must be equal"),
        ({"cache_seqlens": ints(6, 6)}, "seqused_k must have shape"),
        ({"cache_seqlens": torch.tensor([6])}, "cache_seqlens must have dtype int32"),
    ],
)
def test_batches_that_the_library_refuses_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        flash_attn_with_kvcache(**arguments(8, 2, **change))


def test_arguments_without_a_stand_in_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="softcap"):
        flash_attn_with_kvcache(**arguments(8, 1, softcap=30.0))


def test_packed_keys_are_attended_to_request_by_request() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 1, 8) for _ in range(3))
    starts = ints(0, 1, 3)
    out = flash_attn_varlen_func(q, k, v, starts, starts, 2, 2, softmax_scale=0.5, causal=True)
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out[:2], v[:2])
    weights = torch.softmax(0.5 * q[2, 0] @ k[1:, 0].T, dim=-1)
    torch.testing.assert_close(out[2, 0], weights @ v[1:, 0])


def test_states_of_a_prefix_and_of_drafts_are_merged_by_natural_logarithms() -> None:
    torch.manual_seed(0)
    (v_a, v_b), (s_a, s_b) = torch.randn(2, 3, 2, 8), torch.randn(2, 3, 2)
    v, s = merge_state_v2(v_a, s_a, v_b, s_b)
    torch.testing.assert_close(s, torch.logaddexp(s_a, s_b))
    torch.testing.assert_close(v, v_a * (s_a - s).exp()[..., None] + v_b * (s_b - s).exp()[..., None])
