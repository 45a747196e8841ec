"""FlashInfer's rotary embedding on the CPU: each call binds to the installed signature and has the right rows."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from bound_call import bind
from installed_writers import passes_drawn_cases

from attnfuzz.kernels.gpu.direct.rope import FLASHINFER_ROPE
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend

pytest.importorskip("flashinfer", reason="calls are bound to the installed signatures")

FP8 = torch.float8_e4m3fn


def bound(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    taken = bind("flashinfer.rope", name, arguments)
    positions = taken["pos_ids"] if "pos_ids" in taken else taken["positions"]
    assert positions.is_contiguous()
    assert positions.dtype == torch.int32
    return taken


def table_of(taken: dict[str, Any], dim: int) -> torch.Tensor:
    """Cosines and sines of each token, checked as csrc/rope.cu checks the table."""
    table: torch.Tensor = taken["cos_sin_cache"]
    assert table.dtype == torch.float32
    assert table.is_contiguous()
    assert table.shape[1] == dim
    return table[taken["pos_ids" if "pos_ids" in taken else "positions"].long()]


def turned(rows: torch.Tensor, cos_sin: torch.Tensor, *, neox: bool) -> torch.Tensor:
    """All elements of rows, rotated in fp32."""
    assert rows.stride(-1) == 1
    cos, sin = cos_sin.view(len(rows), *(1,) * (rows.ndim - 2), -1).chunk(2, dim=-1)
    values = rows.float()
    x, y = values.chunk(2, dim=-1) if neox else (values[..., 0::2], values[..., 1::2])
    both = x * cos - y * sin, y * cos + x * sin
    return torch.cat(both, -1) if neox else torch.stack(both, -1).flatten(-2)


def in_fp8(values: torch.Tensor, scale: float) -> torch.Tensor:
    return (values.float() * scale).clamp(-448, 448).to(FP8)


def _in_place(**arguments: Any) -> None:
    taken = bound("apply_rope_pos_ids_inplace", arguments)
    _turn(taken, _frequency(taken))


def _in_place_for_llama31(**arguments: Any) -> None:
    """Lowers frequencies as ApplyLlama31RotaryPosIds and its kernel do (include/flashinfer/pos_enc.cuh)."""
    taken = bound("apply_llama31_rope_pos_ids_inplace", arguments)
    low, high, frequency = taken["low_freq_factor"], taken["high_freq_factor"], _frequency(taken)
    smooth = frequency * taken["old_context_len"] / (2 * math.pi * high - 2 * math.pi * low) - 1 / (high / low - 1)
    smooth = smooth.clamp(0, 1)
    _turn(taken, (1 - smooth) * (frequency / taken["rope_scale"]) + smooth * frequency)


def _frequency(taken: dict[str, Any]) -> torch.Tensor:
    dim = taken["rotary_dim"]
    frequency: torch.Tensor = taken["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return frequency


def _turn(taken: dict[str, Any], frequency: torch.Tensor) -> None:
    dim = taken["rotary_dim"]
    angle = (taken["pos_ids"].double().unsqueeze(1) * frequency).float()
    cos_sin = torch.cat((angle.cos(), angle.sin()), -1)
    for rows in (taken["q"], taken["k"]):
        rows[..., :dim] = turned(rows[..., :dim], cos_sin, neox=not taken["interleave"]).to(rows.dtype)


def _by_table(**arguments: Any) -> None:
    taken = bound("apply_rope_with_cos_sin_cache_inplace", arguments)
    dim = taken["cos_sin_cache"].shape[1]
    for rows in (taken["query"], taken["key"]):
        heads = rows.view(len(rows), -1, taken["head_size"])
        heads[..., :dim] = turned(heads[..., :dim], table_of(taken, dim), neox=taken["is_neox"]).to(rows.dtype)


def _quantise(name: str, **arguments: Any) -> None:
    taken = bound(name, arguments)
    dim = taken["q_rope"].shape[-1]
    for row, scale in (("q", taken["quant_scale_q"]), ("k", taken["quant_scale_kv"])):
        if name.startswith("mla") and row == "k":
            assert taken["k_rope"].ndim == 2
        rotated = turned(taken[f"{row}_rope"], table_of(taken, dim), neox=taken["is_neox"])
        taken[f"{row}_rope_out"].view(torch.uint8).copy_(in_fp8(rotated, scale).view(torch.uint8))
        rest = taken[f"{row}_nope"]
        assert (rest is None) is (taken[f"{row}_nope_out"] is None)
        if rest is not None:
            assert rest.shape[-1] % dim == 0
            taken[f"{row}_nope_out"].view(torch.uint8).copy_(in_fp8(rest, scale).view(torch.uint8))


def _append(**arguments: Any) -> None:
    taken = bound("rope_quantize_fp8_append_paged_kv_cache", arguments)
    dim, size = taken["q_rope"].shape[-1], taken["page_size"]
    table, neox, scale = table_of(taken, dim), taken["is_neox"], taken["quant_scale_kv"]
    latent = taken["k_rope"].ndim == 2
    kept = (taken["batch_indices"] >= 0).nonzero()[:, 0]
    place = taken["kv_indptr"].long()[taken["batch_indices"].long()[kept]] * size + taken["positions"].long()[kept]
    pages, slots = taken["kv_indices"].long()[place // size], place % size

    def put(cache: torch.Tensor, rows: torch.Tensor) -> None:
        assert cache.dtype == FP8
        by_token = cache if latent or taken.get("kv_layout", "NHD") == "NHD" else cache.transpose(1, 2)
        assert by_token.shape[1] == size
        by_token.view(torch.uint8)[pages, slots] = in_fp8(rows, scale)[kept].view(torch.uint8)

    def result(name: str, rows: torch.Tensor) -> None:
        taken[name].view(torch.uint8)[kept] = in_fp8(rows, taken["quant_scale_q"])[kept].view(torch.uint8)

    keys = turned(taken["k_rope"], table, neox=neox)
    first, second = taken["paged_kv_cache"]
    if latent:
        assert taken["v"] is None
        put(first, taken["k_nope"])
        put(second, keys)
    else:
        rest = [] if taken["k_nope"] is None else [taken["k_nope"].float()]
        put(first, torch.cat([keys, *rest], -1))
        put(second, taken["v"])
    result("q_rope_out", turned(taken["q_rope"], table, neox=neox))
    if taken["q_nope"] is not None:
        result("q_nope_out", taken["q_nope"])


_ON_CPU: dict[str, Callable[..., None]] = {
    "apply_rope_pos_ids_inplace": _in_place,
    "apply_llama31_rope_pos_ids_inplace": _in_place_for_llama31,
    "apply_rope_with_cos_sin_cache_inplace": _by_table,
    "rope_quantize_fp8": partial(_quantise, "rope_quantize_fp8"),
    "mla_rope_quantize_fp8": partial(_quantise, "mla_rope_quantize_fp8"),
    "rope_quantize_fp8_append_paged_kv_cache": _append,
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", FLASHINFER_ROPE, ids=lambda each: each.name)
def test_drawn_cases_pass_on_the_installed_signature(backend: GpuBackend) -> None:
    passes_drawn_cases(backend, _ON_CPU, 15)
