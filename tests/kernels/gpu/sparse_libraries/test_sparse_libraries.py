"""Kernels of sparse attention from wheels: calls bind released signatures, and drawn cases pass on native stand-ins.

signatures.json has the parameters of functions and the schemas of operators, by distribution and release.
"""

import inspect
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from attnfuzz.harness.families.sparse import SPARSE as FAMILY
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.gpu.sparse_libraries import sgl_kernel
from attnfuzz.kernels.gpu.sparse_libraries.deep_gemm import DEEP_GEMM
from attnfuzz.kernels.gpu.sparse_libraries.flash_mla import FLASH_MLA
from attnfuzz.kernels.gpu.sparse_libraries.prebuilt import PrebuiltSparse
from attnfuzz.kernels.gpu.sparse_libraries.sgl_kernel import SGL_KERNEL
from attnfuzz.kernels.native import build, sparse_ops
from attnfuzz.kernels.releases import deep_gemm as native_deep_gemm
from attnfuzz.reference.device import Device
from attnfuzz.reference.sparse import packed
from attnfuzz.reference.sparse.case import SparseCase
from attnfuzz.strategies.lean import NO_LEAN

RECORDED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("signatures.json").read_text())
PROCESSORS = 132


def signature(parameters: str) -> inspect.Signature:
    return inspect.signature(eval(f"lambda {parameters}: None"))  # noqa: S307 - recorded


def bound(distribution: str, release: str, functions: dict[str, Callable[..., Any]]) -> SimpleNamespace:
    """Make a module of those functions that a release has, which bind its signatures."""

    def make(name: str, parameters: str) -> Callable[..., Any]:
        def call(*positional: Any, **keywords: Any) -> Any:
            given = signature(parameters).bind(*positional, **keywords)
            given.apply_defaults()
            return functions[name](given.arguments)

        return call

    return SimpleNamespace(**{name: make(name, own) for name, own in RECORDED[distribution][release].items()})


# DeepGEMM


def mqa_logits(given: dict[str, Any]) -> torch.Tensor:
    assert not given.get("clean_logits")
    q, (keys, scales), weights, starts, ends = list(given.values())[:5]
    logits = torch.empty(len(q), len(keys))
    sparse_ops.fp8_mqa_logits(q, keys, scales, weights, starts, ends, logits)
    return logits


def paged_logits(given: dict[str, Any]) -> torch.Tensor:
    q, cache, weights, lengths, table, schedule, width = list(given.values())[:7]
    assert not given.get("clean_logits")
    assert given["indices"] is None
    assert lengths.shape == q.shape[:2]
    assert lengths.is_contiguous()
    assert cache.shape[1:3] == (64, 1)
    logits = torch.empty(q.shape[0] * q.shape[1], width)
    native_deep_gemm.PAGED_LOGITS.function(
        q=q,
        kv_cache=cache.squeeze(2),
        weights=weights,
        context_lens=lengths,
        block_table=table,
        schedule=schedule,
        logits=logits,
    )
    return logits


def schedule_of(given: dict[str, Any]) -> torch.Tensor:
    schedule = torch.empty(given["num_sms"] + 1, 2, dtype=torch.int32)
    native_deep_gemm.SCHEDULE.function(context_lens=given["context_lens"], schedule=schedule)
    return schedule


def deep_gemm(release: str) -> SimpleNamespace:
    functions = {
        **dict.fromkeys(("fp8_mqa_logits", "fp8_fp4_mqa_logits"), mqa_logits),
        **dict.fromkeys(("fp8_paged_mqa_logits", "fp8_fp4_paged_mqa_logits"), paged_logits),
        "get_paged_mqa_logits_metadata": schedule_of,
    }
    module = bound("sgl-deep-gemm", release, functions)
    module.get_num_sms = lambda: PROCESSORS
    return module


# FlashMLA


def attended(
    query: torch.Tensor, keys: torch.Tensor, indices: torch.Tensor, scale: float, **others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the LSE of keys alone, in base e, inf for a row without keys."""
    out = torch.empty(*query.shape[:2], 512, dtype=query.dtype)
    lse, alone = torch.empty(query.shape[:2]), {**others, "attn_sink": None}
    sparse_ops.sparse_attention(query, keys, indices, torch.empty_like(out), scale, lse=lse, **alone)
    sparse_ops.sparse_attention(query, keys, indices, out, scale, **others)
    return out, torch.where(lse == -torch.inf, torch.inf, lse * math.log(2))


def sparse_fwd(given: dict[str, Any]) -> tuple[torch.Tensor, None, torch.Tensor]:
    assert given["use_legacy"]
    assert given["return_log2_lse"] is None
    assert given["indices"].shape[2] % 128 == 0
    own = {name: given[name] for name in ("attn_sink", "topk_length")}
    out, lse = attended(given["q"], given["kv"], given["indices"].squeeze(1), given["sm_scale"], **own)
    return out, None, lse


def latents(cache: torch.Tensor) -> torch.Tensor:
    """Return the keys of packed latents as the native kernel takes them, uint8 [slots, 656] or bfloat16."""
    rows, bytes_of_row = cache.flatten(0, 2), cache.shape[3]
    if bytes_of_row == 656:
        return rows
    pages = cache.flatten(1)
    data, scales = pages.split([cache.shape[1] * packed.PAGED_DATA, cache.shape[1] * packed.PAGED_SCALES], dim=1)
    parts = (data.reshape(-1, packed.PAGED_DATA), scales.reshape(-1, packed.PAGED_SCALES))
    return packed.unpack_paged(torch.cat(parts, dim=1)).to(torch.bfloat16)[:, None]


def with_kvcache(given: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    query, cache, indices = given["q"].squeeze(1), given["k_cache"], given["indices"]
    assert given["use_legacy"]
    assert given["num_splits"] is None
    assert given["head_dim_v"] == 512
    others: dict[str, Any] = {"attn_sink": given["attn_sink"], "topk_length": given["topk_length"]}
    if indices is None:
        assert cache.shape[1] == 64
        table, lengths = given["block_table"], given["cache_seqlens"]
        slots = (table.long() * 64).repeat_interleave(64, 1) + torch.arange(64).repeat(table.shape[1])
        seen = torch.arange(slots.shape[1]) < lengths[:, None]
        indices, keys = torch.where(seen, slots, -1).int(), cache.flatten(0, 1)
    else:
        assert given["is_fp8_kvcache"]
        assert indices.shape[2] % 64 == 0
        indices, keys = indices.squeeze(1), latents(cache)
        if given["extra_k_cache"] is not None:
            assert given["extra_indices_in_kvcache"].shape[2] % 64 == 0
            others |= {
                "extra_keys": latents(given["extra_k_cache"]),
                "extra_indices": given["extra_indices_in_kvcache"].squeeze(1),
                "extra_topk_length": given["extra_topk_length"],
            }
    out, lse = attended(query, keys, indices, given["softmax_scale"], **others)
    return out[:, None], lse[:, :, None]


def flash_mla(release: str) -> SimpleNamespace:
    functions = {
        "flash_mla_sparse_fwd": sparse_fwd,
        "flash_mla_with_kvcache": with_kvcache,
        "get_mla_metadata": lambda _: ("schedule", None),
    }
    return bound("sgl-flash-mla", release, functions)


# SGLang's top-k, as operators with the recorded schemas


def fast_topk(score: torch.Tensor, indices: torch.Tensor, lengths: torch.Tensor, starts: torch.Tensor | None) -> None:
    sparse_ops.top_k_per_row(score, lengths, indices, starts)


def transform_fused(
    score: torch.Tensor,
    lengths: torch.Tensor,
    slots: torch.Tensor,
    table: torch.Tensor,
    firsts: torch.Tensor,
    starts: torch.Tensor | None,
) -> None:
    assert firsts.dtype == torch.int32
    assert firsts.tolist()[:: len(table)] == [0, len(score)]
    positions = torch.empty_like(slots)
    sparse_ops.top_k_per_row(score, lengths, positions, starts)
    requests = torch.arange(len(table), dtype=torch.int32).repeat_interleave(firsts.diff())
    sparse_ops.convert_positions_to_slots(positions, requests, table, slots, page_size=1)


def transform_ragged(
    score: torch.Tensor, lengths: torch.Tensor, slots: torch.Tensor, offsets: torch.Tensor, starts: torch.Tensor | None
) -> None:
    positions = torch.empty_like(slots)
    sparse_ops.top_k_per_row(score, lengths, positions, starts)
    sparse_ops.convert_positions_to_offsets(positions, offsets, slots)


@pytest.fixture(scope="module")
def operators() -> Any:
    (schemas,) = {tuple(each) for each in RECORDED["sglang-kernel"].values()}
    name = "sgl_kernel_recorded"
    made = torch.library.Library(name, "DEF")
    for schema, function in zip(schemas, (fast_topk, transform_fused, transform_ragged), strict=True):
        made.define(schema.replace("Tensor ?", "Tensor?"))
        made.impl(schema.split("(", maxsplit=1)[0], function, "CPU")
    yield getattr(torch.ops, name)
    del made


def drawn(backend: PrebuiltSparse, count: int) -> list[SparseCase]:
    found: list[SparseCase] = []
    run_examples(FAMILY.cases(backend.capability, backend.name, NO_LEAN), found.append, examples=count, seed_of=2)
    return found


RELEASES = [
    *((backend, release) for backend in DEEP_GEMM for release in RECORDED["sgl-deep-gemm"]),
    *((backend, "1.0.0") for backend in FLASH_MLA),
    *((backend, "any") for backend in SGL_KERNEL),
]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "release"), RELEASES, ids=lambda each: getattr(each, "name", each))
def test_drawn_cases_pass_on_stand_ins_that_bind_the_signatures(
    backend: PrebuiltSparse, release: str, operators: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow, because native kernels attend with 64 heads and more."""
    build.load()
    libraries = {"deep_gemm": deep_gemm(release)} if backend in DEEP_GEMM else {"flash_mla": flash_mla("1.0.0")}
    for name, library in libraries.items():
        monkeypatch.setitem(sys.modules, name, library)
    monkeypatch.setattr(sgl_kernel, "operators", lambda: operators)
    on_cpu = replace(backend, capability=msgspec.structs.replace(backend.capability, device=Device.CPU))
    for case in drawn(backend, 4 if backend in FLASH_MLA else 8):
        case.validate()
        assert backend.capability.why_not(case) is None
        task = Task(case=case, backend=backend.name)
        run = Execution(task, lambda _: None, backend=on_cpu).run()  # type: ignore[arg-type]
        assert run.unsupported is None or "queries of a request" in run.unsupported
        assert run.failures == (), FAMILY.describe(case)


def test_several_blocks_of_a_list_are_drawn() -> None:
    lengths = {case.geometry.top_k for case in drawn(FLASH_MLA[0], 40)}
    assert lengths == {128, 256, 384, 512}


@pytest.mark.parametrize("distribution", ["sgl-deep-gemm", "sgl-flash-mla"])
def test_recorded_signatures_are_those_of_the_installed_release(distribution: str) -> None:
    try:
        release = version(distribution)
    except PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")
    module = pytest.importorskip({"sgl-deep-gemm": "deep_gemm", "sgl-flash-mla": "flash_mla"}[distribution])
    for name, parameters in RECORDED[distribution].get(release, {}).items():
        assert list(inspect.signature(getattr(module, name)).parameters) == list(signature(parameters).parameters)
