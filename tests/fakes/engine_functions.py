"""Planners on the stand-ins of engines' functions: trtllm_mha's plans, passed as FlashAttention's or a wrapper's.

`engine_functions.py:varlen`, `:with_kvcache` and `:paged_run` are right. Behind an underscore, `one_key_less` follows
for lengths that lack a key, `other_page` for a page id outside of the pool, and `stale` for a schedule or a plan of an
earlier batch.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from msgspec import structs

from attnfuzz.kernels.interface.backend import Bench, LauncherAround, Op, Session
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.releases import flash_attention, planned_runs
from attnfuzz.kernels.trtllm.backends import MHA, TrtllmBackend
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode

PAGED_RUN = planned_runs.PAGED_RUNS["BatchPrefillWithPagedKVCacheWrapper.run"]


@dataclass(frozen=True)
class _Plan:
    """The requests of a call of trtllm_mha, with a token-major cache."""

    given: dict[str, Any]
    starts: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    mistake: str

    @property
    def cache(self) -> tuple[torch.Tensor, torch.Tensor]:
        cache = self.given["kv_cache"]
        key, value = cache if isinstance(cache, tuple) else cache.unbind(1)
        hnd = self.given.get("kv_layout", "HND") == "HND"
        return (key.transpose(1, 2), value.transpose(1, 2)) if hnd else (key, value)


def _flash(plan: _Plan, bench: Bench, names: tuple[str, str, str]) -> dict[str, Any]:
    (key, value), query = plan.cache, plan.given["query"]
    lse = bench.memory.tensor("softmax_lse", (query.shape[1], query.shape[0]), torch.float32)
    rows = plan.starts.clone()
    if plan.mistake == "stale":
        rows[-1] -= 1
    schedule = flash_attention.schedule_of(rows, len(rows) - 1, 0)
    return {
        "out": plan.given["out"],
        "lse": lse,
        "q": query,
        names[0]: key,
        names[1]: value,
        "page_table": plan.table,
        names[2]: plan.lengths,
        "cu_seqlens_q": plan.starts,
        "max_seqlen_q": int(plan.starts.diff().max()),
        "softmax_scale": plan.given["bmm1_scale"],
        "causal": True,
        "scheduler_metadata": bench.memory.copy("scheduler_metadata", schedule),
    }


def _run(plan: _Plan, bench: Bench) -> dict[str, Any]:
    cache = plan.cache
    size, lengths = cache[0].shape[1], plan.lengths
    counts = (lengths + size - 1) // size
    indptr = torch.tensor([0, *counts.cumsum(0).tolist()], dtype=torch.int32)
    pages = torch.cat([row[:count] for row, count in zip(plan.table, counts.tolist(), strict=True)])
    planned = (lengths - size).clamp(min=0) if plan.mistake == "stale" else lengths
    lists = {
        "qo_indptr": plan.starts,
        "paged_kv_indptr": indptr,
        "paged_kv_indices": pages,
        "paged_kv_last_page_len": lengths - (counts - 1).clamp(min=0) * size,
        "planned_indptr": indptr,
        "planned_lengths": planned,
    }
    return {
        "out": plan.given["out"],
        "q": plan.given["query"],
        "paged_kv_cache": cache,
        **{name: bench.memory.copy(name, each) for name, each in lists.items()},
        "page_size": size,
        "sm_scale": plan.given["bmm1_scale"],
        "causal": True,
        "kv_layout": "NHD",
    }


_KINDS: dict[str, tuple[Op, Callable[[_Plan, Bench], dict[str, Any]]]] = {
    "varlen": (flash_attention.VARLEN, lambda plan, bench: _flash(plan, bench, ("k", "v", "seqused_k"))),
    "with_kvcache": (
        flash_attention.WITH_CACHE,
        lambda plan, bench: _flash(plan, bench, ("k_cache", "v_cache", "cache_seqlens")),
    ),
    "paged_run": (PAGED_RUN, _run),
}


class _Engine(LauncherAround):
    """Passes a planner's calls on as those of an engine."""

    def __init__(self, bench: Bench, kind: str, mistake: str) -> None:
        super().__init__(bench.launcher)
        self._bench, self._kind, self._mistake = bench, kind, mistake

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        if op.name not in (NATIVE.decode.name, NATIVE.context.name):
            return self._inner.launch(op, **arguments)
        memory, batch = self._bench.memory, len(arguments["seq_lens"])
        starts = arguments.get("cum_seq_lens_q")
        if starts is None:
            starts = memory.copy("starts", torch.arange(batch + 1, dtype=torch.int32) * arguments["q_len_per_req"])
        lengths, table = arguments["seq_lens"].clone(), arguments["block_tables"].clone()
        if self._mistake == "one_key_less":
            lengths = (lengths - 1).clamp(min=0)
        if self._mistake == "other_page":
            table[:, 0] = 1 << 12
        plan = _Plan(arguments, starts, memory.copy("lengths", lengths), memory.copy("table", table), self._mistake)
        named, arrange = _KINDS[self._kind]
        return self._inner.launch(named, **arrange(plan, self._bench))


@dataclass(frozen=True)
class EngineBackend(TrtllmBackend):
    """trtllm_mha on the stand-ins of an engine's functions."""

    kind: str = ""
    mistake: str = ""

    @property
    def ops(self) -> dict[str, Op]:
        return {**super().ops, **{op.name: op for op in (*flash_attention.OPS, *planned_runs.OPS)}}

    def open(self, case: Case, bench: Bench) -> Session:
        return super().open(case, replace(bench, launcher=_Engine(bench, self.kind, self.mistake)))


def __getattr__(attribute: str) -> EngineBackend:
    for kind in _KINDS:
        if attribute.startswith(kind):
            return EngineBackend(
                name=f"engine_{attribute}",
                session=MHA.session,
                capability=Capability(modes=(Mode.DECODE, Mode.EXTEND), layouts=MHA.capability.layouts, padding=True),
                contract=structs.replace(MHA.contract, lse=None),
                kind=kind,
                mistake=attribute.removeprefix(kind).strip("_"),
            )
    raise AttributeError(attribute)
