"""Stands for the TRT-LLM backends of GPUs: native kernels behind FlashInfer's signatures, on the CPU.

Every call is bound to the installed FlashInfer and then computed from the same metadata, so that what the sessions of a
GPU hand over is judged without one. What the real functions reject in Python is rejected.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from bound_call import bind
from flashinfer.utils import get_trtllm_gen_multi_ctas_kv_counter_bytes

from attnfuzz.kernels.cuda.visible import processors
from attnfuzz.kernels.gpu.blackwell import BLACKWELL, BLACKWELL_BACKENDS
from attnfuzz.kernels.gpu.direct.mla import MlaBatch, MlaWrapper, StaticSize
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.hopper.backends import HOPPER, HOPPER_BACKENDS
from attnfuzz.kernels.gpu.hopper.sessions import HopperMhaSession, HopperMlaPrefill, HopperMlaSession
from attnfuzz.kernels.gpu.variants import with_revisions
from attnfuzz.kernels.gpu.wrappers.ragged import FA3_RAGGED
from attnfuzz.kernels.interface.backend import Bench, Fill, Op
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.trtllm.revisions import MHA_REVISIONS, MLA_REVISIONS, revised
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device
from attnfuzz.reference.noise import NoiseModel

_OF_FMHA_V2 = ("qkv", "input_layout", "mask_mode", "logits_soft_cap_scale")
_SCALES = frozenset({"bmm1_scale", "bmm2_scale"})
_FOR_THE_GPU = ("multi_ctas_kv_counter_buffer", "mask")


def named(backend: str) -> str:
    """How the registry finds a backend of this module."""
    return f"{Path(__file__)}:{backend}"


def _bound(real: Op, native: Op) -> Op:
    """`native`, called as `real` is."""

    def function(**arguments: Any) -> Any:
        taken = bind(str(real.module), real.name, arguments)
        if taken.get("multi_ctas_kv_counter_buffer") is not None:
            _check_counters(taken)
        if taken.get("sinks") is not None and taken["sinks"].dtype != torch.float32:
            raise ValueError("attention_sinks must be a float tensor")
        for name in _SCALES.intersection(taken):
            taken[name] = float(taken[name])
        return native.function(**{name: value for name, value in taken.items() if name not in _FOR_THE_GPU})

    return replace(real, function=function)


def _check_counters(taken: dict[str, Any]) -> None:
    """What FlashInfer and the launcher check of the counters, and that they are zero, which nobody checks."""
    counters, query = taken["multi_ctas_kv_counter_buffer"], taken["query"]
    batch = taken.get("batch_size", len(query) // taken.get("q_len_per_req", 1))
    multiprocessors = processors(query.device)
    assert counters.numel() >= get_trtllm_gen_multi_ctas_kv_counter_bytes(batch, query.shape[-2], multiprocessors)
    assert counters.data_ptr() % 16 == 0
    assert not counters.any()


def _allocate(taken: dict[str, Any], query: torch.Tensor) -> None:
    """Make the output if it was not passed."""
    if taken.get("out") is None:
        taken["out"] = torch.empty_like(query)


def _xqa(**arguments: Any) -> Any:
    """TRT-LLM's decode on Hopper: no LSE, and a causal mask of the queries that it derives its batch from."""
    taken = bind("flashinfer.decode", "trtllm_batch_decode_with_kv_cache", arguments)
    query, stride, mask = taken["query"], taken["q_len_per_req"], taken.pop("mask", None)
    if taken.get("lse") is not None or taken.get("return_lse"):
        raise NotImplementedError("xqa backend does not support return_lse/lse output")
    if stride > 1:
        causal = [(2 << token) - 1 for token in range(stride)]
        assert mask.dtype == torch.uint16
        assert mask.int().tolist() == [[[row, 0] for row in causal]] * (len(query) // stride)
    _allocate(taken, query)
    NATIVE.decode.function(**taken | {name: float(taken[name]) for name in _SCALES.intersection(taken)})
    return taken["out"]


def _fmha_v2(**arguments: Any) -> Any:
    """TRT-LLM's context kernel on Hopper, with what FlashInfer and its launcher check."""
    taken = bind("flashinfer.prefill", "trtllm_fmha_v2_prefill", arguments)
    (query, pool), layout, windowed = taken["qkv"], taken["input_layout"], taken.get("window_left", -1) >= 0
    if taken["block_tables"].shape[0] != taken["batch_size"]:
        raise ValueError("block_tables batch dimension does not match batch_size")
    assert (pool.ndim, pool.shape[1], pool.is_contiguous(), query.is_contiguous()) == (5, 2, True, True)
    assert taken["max_kv_len"] >= taken["max_q_len"]
    assert taken["workspace_buffer"].data_ptr() % 16 == 0
    assert (taken["mask_mode"], taken["logits_soft_cap_scale"]) == ("sliding_window" if windowed else "causal", None)
    _allocate(taken, query)
    NATIVE.context.function(
        query=query,
        kv_cache=pool,
        kv_layout=layout.removeprefix("Q_PAGED_KV_"),
        **{name: value for name, value in taken.items() if name not in _OF_FMHA_V2},
    )
    return taken["out"]


_BLACKWELL_TABLE = OpsTable(
    decode=_bound(BLACKWELL.decode, NATIVE.decode),
    context=_bound(BLACKWELL.context, NATIVE.context),
    ragged=_bound(BLACKWELL.ragged, NATIVE.ragged),
    mla_decode=_bound(BLACKWELL.mla_decode, NATIVE.mla_decode),
    merge_state_in_place=_bound(BLACKWELL.merge_state_in_place, NATIVE.merge_state_in_place),
    fixup=NATIVE.fixup,
    decode_workspace=NATIVE.decode_workspace,
    prefill_workspace=NATIVE.prefill_workspace,
    prepare=NATIVE.prepare,
)

_HOPPER_TABLE = replace(
    _BLACKWELL_TABLE,
    decode=replace(HOPPER.decode, function=_xqa),
    context=replace(HOPPER.context, function=_fmha_v2),
    prefill_workspace=HOPPER.prefill_workspace,
)


class _NativeMlaWrapper(MlaWrapper):
    """Plans to a page table, and runs the native kernel on it."""

    def __init__(self, case: Case, bench: Bench, backend: str, static: StaticSize | None = None) -> None:
        assert backend == "fa3"
        self._case, self._bench, self._static = case, bench, static
        self._lens = self._table = torch.empty(0)
        if static is not None:
            self._lens = bench.memory.tensor("kv_len_arr", (static.requests,), torch.int32)
            self._table = bench.memory.tensor("block_tables", (static.requests, static.pages), torch.int32)

    def plan(self, batch: MlaBatch, sm_scale: float) -> None:
        """Every request has as many queries, which is all that the native kernel can."""
        assert len(batch.kv_lens) == len(batch.pages)
        (stride,) = set(batch.q_lens)
        width = max(1, *(len(pages) for pages in batch.pages)) if self._static is None else self._static.pages
        assert self._static is None or sum(len(pages) for pages in batch.pages) <= width
        lens = torch.tensor(batch.kv_lens, dtype=torch.int32)
        table = torch.tensor([_filled(pages, width) for pages in batch.pages], dtype=torch.int32)
        if self._static is None:
            self._lens = self._bench.memory.copy("kv_len_arr", lens)
            self._table = self._bench.memory.copy("block_tables", table)
        else:
            self._lens.copy_(lens)
            self._table.copy_(table)
        self._stride, self._scale = stride, sm_scale

    def launch(self, query: torch.Tensor, kv_cache: torch.Tensor, results: Results) -> None:
        """On the strides and scales of the plan."""
        latent = self._case.geometry.latent
        assert latent is not None
        shape = (len(self._lens), self._stride)
        most = self._table.shape[1] * self._case.geometry.page_size
        need = NATIVE.decode_workspace(
            batch=shape[0],
            q_len=shape[1],
            q_heads=query.shape[1],
            kv_heads=1,
            head_dim_vo=latent.rank,
            max_seq_len=most,
        )
        self._bench.launcher.launch(
            NATIVE.mla_decode,
            query=query.unflatten(0, shape),
            kv_cache=kv_cache,
            workspace_buffer=self._bench.memory.tensor("workspace_buffer", (need.total,), torch.uint8, fill=Fill.ZEROS),
            qk_nope_head_dim=latent.nope,
            kv_lora_rank=latent.rank,
            qk_rope_head_dim=latent.rope,
            block_tables=self._table,
            seq_lens=self._lens,
            max_seq_len=most,
            out=results.out.unflatten(0, shape),
            lse=results.lse,
            return_lse=True,
            bmm1_scale=self._scale,
        )


def _filled(pages: Sequence[int], width: int) -> list[int]:
    return [*pages, *[DUMMY_PAGE] * (width - len(pages))]


class _Prefill(HopperMlaPrefill):
    form = replace(FA3_RAGGED, module="fake_wrappers")


class _HopperMla(HopperMlaSession):
    prefill_type = _Prefill
    wrapper_type = _NativeMlaWrapper


class _OnCpu(GpuBackend):
    """A backend that needs no GPU."""

    def missing(self) -> str | None:
        """Whatever the native kernels lack."""
        return None

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile the native kernels."""
        NATIVE.prepare(progress)


def _on_cpu(backend: GpuBackend, table: OpsTable) -> _OnCpu:
    session = backend.session
    assert isinstance(session, partial)
    driven: Any = session.func
    if issubclass(driven, HopperMlaSession):
        driven = revised(driven, _HopperMla)
    capability: Capability = msgspec.structs.replace(backend.capability, device=Device.CPU)
    fields = {name: getattr(backend, name) for name in backend.__dataclass_fields__}
    changed = {
        "session": partial(driven, table),
        "capability": capability,
        "kernels": table.ops(),
        "modules_of": lambda _: (),
        "theoretical": lambda _: NoiseModel.fp32_arithmetic(),
        "own": (),
    }
    return _OnCpu(**(fields | changed))


def _named(found: Sequence[GpuBackend], table: OpsTable) -> dict[str, _OnCpu]:
    """By their names in this module: of hopper:trtllm_mha@24566, MHA_24566."""
    names = [each.name.partition("_")[2].upper().replace("@", "_").replace("-", "_") for each in found]
    return dict(zip(names, (_on_cpu(each, table) for each in found), strict=True))


_MHA, _MLA = (next(each for each in HOPPER_BACKENDS if each.name == f"hopper:trtllm_{kind}") for kind in ("mha", "mla"))
# With the revisions that show nothing on Hopper, so that they can be seen not to.
_HOPPER = {
    each.name: each
    for each in (
        *HOPPER_BACKENDS,
        *with_revisions(_MHA, HopperMhaSession, HOPPER, MHA_REVISIONS),
        *with_revisions(_MLA, HopperMlaSession, HOPPER, MLA_REVISIONS),
    )
}
_FAMILIES = (("HOPPER", (*_HOPPER.values(),), _HOPPER_TABLE), ("BLACKWELL", BLACKWELL_BACKENDS, _BLACKWELL_TABLE))
for _family, _found, _table in _FAMILIES:
    globals().update({f"{_family}_{_name}": _backend for _name, _backend in _named(_found, _table).items()})
