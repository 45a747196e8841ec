"""FlashInfer's writers on the CPU: each call binds to the installed signature, and its metadata names the slots."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bound_call import bind
from installed_writers import passes_drawn_cases

from attnfuzz.kernels.cache_writes import interfaces
from attnfuzz.kernels.gpu.direct.cache_writes import FLASHINFER_WRITERS
from attnfuzz.kernels.gpu.direct.rope import FLASHINFER_ROPE
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend

pytest.importorskip("flashinfer", reason="calls are bound to the installed signatures")

_MODULE = "flashinfer.page"


def _slots(taken: dict[str, Any], tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The page index of each token, and its position, checked as csrc/page.cu checks them."""
    lists = {name: taken[name] for name in ("batch_indices", "positions", "kv_indices", "kv_indptr")}
    assert all(each.dtype == torch.int32 and each.is_contiguous() for each in lists.values())
    assert len(lists["batch_indices"]) == len(lists["positions"]) == tokens
    assert len(lists["kv_indptr"]) == len(taken["kv_last_page_len"]) + 1
    rows = lists["batch_indices"].long()
    # Of a graph's rows, those without a token keep what an earlier step left.
    assert (lists["kv_indptr"][rows] <= lists["kv_indptr"][rows + 1]).all()
    assert not tokens or int(rows.min()) >= 0
    return lists["kv_indptr"][rows].long(), lists["positions"].long()


def _put(taken: dict[str, Any], cache: torch.Tensor, tokens: torch.Tensor) -> None:
    """Write tokens [n, ...] into a cache [pages, page size, ...] as AppendPagedKVCacheKernel finds their slots."""
    assert tokens.dtype == cache.dtype
    assert tokens.stride(-1) == cache.stride(-1) == 1
    first, position = _slots(taken, len(tokens))
    size = cache.shape[1]
    pages = taken["kv_indices"].long()[first + position // size]
    bits = {1: torch.uint8, 2: torch.int16}[cache.itemsize]
    cache.view(bits)[pages, position % size] = tokens.view(bits)


def _append(**arguments: Any) -> None:
    taken = bind(_MODULE, "append_paged_kv_cache", arguments)
    key, value = taken["paged_kv_cache"]
    assert key.stride() == value.stride()
    for cache, tokens in ((key, taken["append_key"]), (value, taken["append_value"])):
        _put(taken, cache if taken["kv_layout"] == "NHD" else cache.transpose(1, 2), tokens)


def _append_nvfp4(**arguments: Any) -> None:
    taken = bind(_MODULE, "nvfp4_quantize_append_paged_kv_cache", arguments)
    assert {type(taken[name]) for name in ("k_scale", "v_scale")} == {float}
    _quantise(_checked(taken))


def _quantise(taken: dict[str, Any]) -> None:
    """Call the native kernel with FlashInfer's arguments."""
    names = {"append_key": "key", "append_value": "value"}
    (k_cache, v_cache), (k_scales, v_scales) = taken.pop("paged_kv_cache"), taken.pop("kv_cache_sf")
    pools = {"k_cache": k_cache, "v_cache": v_cache, "k_scales": k_scales, "v_scales": v_scales}
    interfaces.append_nvfp4(**pools, **{names.get(name, name): value for name, value in taken.items()})


def _store_nvfp4(**arguments: Any) -> None:
    taken = bind(_MODULE, "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping", arguments)
    slots = taken.pop("slot_mapping").long()
    size = taken["paged_kv_cache"][0].shape[1 if taken["kv_layout"] == "NHD" else 2]
    kept = slots >= 0
    count = int(kept.sum())
    # Each token as a request of its own, whose only page is that of its slot.
    starts = torch.arange(count + 1, dtype=torch.int32)
    _quantise(
        _checked(taken)
        | {"append_key": taken["append_key"][kept], "append_value": taken["append_value"][kept]}
        | {"batch_indices": starts[:count], "kv_indptr": starts, "kv_last_page_len": starts[:count]}
        | {"positions": (slots[kept] % size).int(), "kv_indices": (slots[kept] // size).int()}
    )


def _checked(taken: dict[str, Any]) -> dict[str, Any]:
    """The arguments, as csrc/page.cu checks them."""
    assert taken["append_key"].dtype == taken["append_value"].dtype != torch.float32
    for name, dtype in (("paged_kv_cache", torch.uint8), ("kv_cache_sf", torch.float8_e4m3fn)):
        key, value = taken[name]
        assert key.dtype == value.dtype == dtype
        assert key.stride() == value.stride()
    return taken


def _append_mla(**arguments: Any) -> None:
    taken = bind(_MODULE, "append_paged_mla_kv_cache", arguments)
    assert (taken["ckv_cache"].shape[2], taken["kpe_cache"].shape[2]) == (512, 64)
    for part in ("ckv", "kpe"):
        _put(taken, taken[f"{part}_cache"], taken[f"append_{part}"])


_ON_CPU: dict[str, Callable[..., None]] = {
    "append_paged_kv_cache": _append,
    "nvfp4_quantize_append_paged_kv_cache": _append_nvfp4,
    "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping": _store_nvfp4,
    "append_paged_mla_kv_cache": _append_mla,
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", FLASHINFER_WRITERS, ids=lambda each: each.name)
def test_drawn_cases_pass_on_the_installed_signature(backend: GpuBackend) -> None:
    passes_drawn_cases(backend, _ON_CPU, 16)


def test_all_of_them_need_one_module() -> None:
    for writers in (FLASHINFER_WRITERS, FLASHINFER_ROPE):
        assert len({module.name for backend in writers for module in backend.modules()}) == 1
