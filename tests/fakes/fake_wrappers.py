"""Stands for FlashInfer's wrapper classes: they take the installed ones' arguments, and attend on the CPU.

Metadata is read as the kernels read it: pages through the list of their ids, lengths through the indptr. What the real
ones reject is rejected. Nothing of a plan is kept but the tensors, of which a graph's are the buffers.
"""

import inspect
import itertools
import math
from typing import Any

import torch
from flashinfer import attention, decode, prefill
from plain_attention import attend_one, to_base2

_NEED = 4096
"""Bytes that a plan is said to need of each workspace, beside four per page: it grows with the batch."""

_SPLIT = 4
"""Beyond so many pages, decode is said to split the keys, for which it needs a workspace of floats."""

_SHORT = 64
"""Up to so many queries of each request, a wrapper that may choose takes FA2."""


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: dict[str, Any],
    scale: float,
    sinks: torch.Tensor | None,
    mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out [q, heads, dim] and lse [q, heads] in base 2 of one request."""
    answer = attend_one(
        query,
        key,
        value,
        scale,
        window_left=plan["window_left"],
        causal=mask is None and plan["causal"],
        sinks=sinks,
        soft_cap=max(plan["logits_soft_cap"], 0.0),
        masks=None if mask is None else (mask,),
    )
    return answer.out, to_base2(answer.lse)


def _chosen(pool: torch.Tensor, pages: list[int]) -> torch.Tensor:
    """Pages of a pool, also of float8, which torch 2.7 can't index on a CPU."""
    return pool.view(torch.uint8)[pages].view(pool.dtype) if pool.dtype.itemsize == 1 else pool[pages]


class _Wrapper:
    """What all of them have in common. `real` is the class whose signatures are kept to."""

    real: Any

    def __init__(self, **arguments: Any) -> None:
        inspect.signature(self.real.__init__).bind(self, **arguments)
        if arguments["float_workspace_buffer"].data_ptr() % 16:
            raise ValueError("float_workspace_buffer must be 16-byte aligned")
        self.layout, self.graph = arguments.get("kv_layout", "NHD"), arguments.get("use_cuda_graph", False)
        self.floats = arguments["float_workspace_buffer"]
        self.backend = arguments.get("backend")
        self.tensor_cores = arguments.get("use_tensor_cores", False)
        self.buffers = {name: value for name, value in arguments.items() if "_buf" in name}
        del self.buffers["float_workspace_buffer"]
        self.mask_buffers = {name: self.buffers.pop(name) for name in list(self.buffers) if "mask" in name}
        self.most_rows: int | None = None

    def reset_workspace_buffer(self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor) -> None:
        for workspace in (float_workspace_buffer, int_workspace_buffer):
            if workspace.data_ptr() % 16:
                raise ValueError("workspaces must be 16-byte aligned")
        self.floats, self.ints = float_workspace_buffer, int_workspace_buffer

    def plan(self, **arguments: Any) -> None:
        signature = inspect.signature(self.real.plan)
        signature.bind(self, **arguments)
        arguments.pop("seq_lens", None)
        given = {name: value for name, value in arguments.items() if not isinstance(value, torch.Tensor)}
        defaults = {"sm_scale": arguments.get("head_dim_qk", arguments.get("head_dim", 1)) ** -0.5}
        # A decode has no choice.
        defaults["causal"] = signature.parameters["causal"].default if "causal" in signature.parameters else True
        self.settings = {"window_left": -1, "logits_soft_cap": 0.0, **defaults, **given}
        flat, packed = arguments.pop("custom_mask", None), arguments.pop("packed_custom_mask", None)
        lists = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
        self.rows = self.rows_of(lists)
        if not self.graph:
            self.lists = lists
            self.masks = self.packed(flat, packed)
            return
        self.lists = list(self.buffers.values())
        if [len(each) for each in lists[:-2]] != [len(each) for each in self.lists[:-2]]:
            raise ValueError("the batch size is fixed")
        for buffer, value in zip(self.lists, lists, strict=True):
            buffer[: len(value)].copy_(value)
        if flat is not None or packed is not None:
            for buffer, value in zip(self.mask_buffers.values(), self.packed(flat, packed) or (), strict=True):
                buffer[: len(value)].copy_(value)
        # A graph with buffers for masks has one in each run.
        self.masks = tuple(self.mask_buffers.values()) or None
        self.most_rows = self.most_rows or self.rows
        if self.rows > self.most_rows:
            raise ValueError("more rows than at first")

    def packed(
        self, flat: torch.Tensor | None, packed: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The bits of a batch's masks, and the byte at which those of each request begin."""
        if flat is None and packed is None:
            return None
        sizes = [(end - first) * self.keys(index) for index, (first, end) in enumerate(self.requests())]
        starts = torch.tensor([0, *itertools.accumulate(-(-size // 8) for size in sizes)])
        if packed is not None:
            if len(packed) != starts[-1]:
                raise ValueError(f"packed_custom_mask has {len(packed)} bytes, not {int(starts[-1])}")
            return packed, starts
        assert flat is not None
        if len(flat) != sum(sizes):
            raise ValueError(f"custom_mask has {len(flat)} entries, not {sum(sizes)}")
        # A batch may have no requests.
        bits = [flat[:0], *(torch.nn.functional.pad(each, (0, -len(each) % 8)) for each in flat.split(sizes))]
        places = 2 ** torch.arange(8)
        return (torch.cat([torch.zeros(0, dtype=torch.int32), *bits]).view(-1, 8) * places).sum(dim=1).to(
            torch.uint8
        ), starts

    def mask(self, index: int, q_len: int, kv_len: int) -> torch.Tensor | None:
        """The mask of a request, as the kernel reads it."""
        if self.masks is None:
            return None
        place = int(self.masks[1][index]) * 8 + torch.arange(q_len * kv_len)
        return (self.masks[0][place // 8] >> (place % 8) & 1).bool().view(q_len, kv_len)

    def keys(self, index: int) -> int:
        """The keys of a request, by the lists."""
        indptr, _, last = (each.tolist() for each in self.lists[-3:])
        return int(max(indptr[index + 1] - indptr[index] - 1, 0) * self.settings["page_size"] + last[index])

    def rows_of(self, lists: list[torch.Tensor]) -> int:
        return int(lists[0][-1])

    def requests(self) -> list[tuple[int, int]]:
        """First and last query row of each."""
        return list(itertools.pairwise(self.lists[0].tolist()))

    def scale(self, arguments: dict[str, Any]) -> float:
        return float(self.settings["sm_scale"] * arguments.get("k_scale", 1.0))

    def tokens(self, arguments: dict[str, Any], index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V [tokens, heads, dim] of one request, by the lists."""
        indptr, ids, last = (each.tolist() for each in self.lists[-3:])
        cache = arguments["paged_kv_cache"]
        pools = (cache[:, 0], cache[:, 1]) if isinstance(cache, torch.Tensor) else cache
        key, value = (pool.transpose(1, 2) if self.layout == "HND" else pool for pool in pools)
        pages = ids[indptr[index] : indptr[index + 1]]
        kv_len = max(len(pages) - 1, 0) * key.shape[1] + last[index]
        key, value = (_chosen(pool, pages).flatten(0, 1)[:kv_len] for pool in (key, value))
        if not self.settings.get("use_token_head_sf"):
            return key, value
        scales = (each.transpose(1, 2) if self.layout == "HND" else each for each in arguments["kv_cache_sf"])
        own = (each[pages].flatten(0, 1)[:kv_len, :, None] for each in scales)
        return key.float() * next(own), value.float() * next(own)

    def run(self, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        inspect.signature(self.real.run).bind(self, **arguments)
        query = arguments["q"]
        shape = (*query.shape[:2], self.settings.get("head_dim_vo", query.shape[2]))
        out = arguments.get("out", torch.empty(shape, dtype=query.dtype))
        heads_first = arguments.get("lse_layout") == "HN"
        lses = arguments.get("lse", torch.empty(shape[:2]))
        if heads_first and (not lses.is_contiguous() or lses.shape != shape[1::-1]):
            raise ValueError("lse does not have the layout HN")
        lses = lses.t() if heads_first else lses
        self.compute(arguments, out, lses)
        if arguments.get("lse_base") == "ln":
            lses *= math.log(2)
        return out, lses

    def compute(self, arguments: dict[str, Any], results: torch.Tensor, lses: torch.Tensor) -> None:
        rows = arguments["q"].shape[0]
        # A replay makes no call: what was captured has the rows that were planned then.
        if rows != (self.most_rows or self.rows):
            raise ValueError("q has other rows than were planned")
        self.floats.fill_(0xA5)
        for index, (first, end) in enumerate(self.requests()):
            query = arguments["q"][first:end]
            if not len(query):
                continue
            key, value = self.tokens(arguments, index)
            mask, sinks = self.mask(index, len(query), len(key)), arguments.get("sinks")
            out, lse = attend(query, key, value, self.settings, self.scale(arguments), sinks, mask)
            results[first:end] = out
            lses[first:end] = lse
        if self.scaled(arguments):
            results *= arguments["v_scale"]

    def scaled(self, arguments: dict[str, Any]) -> bool:
        return bool(arguments.get("v_scale", 1) != 1)


def refuse_different_strides(cache: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
    if isinstance(cache, tuple) and len({pool.stride() for pool in cache}) > 1:
        raise ValueError("K and V have different strides")


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Paged prefill."""

    real = prefill.BatchPrefillWithPagedKVCacheWrapper

    def plan(self, **arguments: Any) -> None:
        super().plan(**arguments)
        longest = max((end - first for first, end in self.requests()), default=0)
        # As on Hopper. In a graph, the first choice stands.
        if self.backend == "auto" and not (self.graph and hasattr(self, "_backend")):
            self._backend = "fa2" if self.masks is not None or longest <= _SHORT else "fa3"

    def run(self, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if "fa3" in (self.backend, getattr(self, "_backend", None)):
            refuse_different_strides(arguments["paged_kv_cache"])
        return super().run(**arguments)

    def workspace_size(self, **arguments: Any) -> tuple[int, int]:
        inspect.signature(self.real.workspace_size).bind(self, **arguments)
        return _NEED, _NEED + 4 * len(arguments["paged_kv_indices"])


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """Paged decode: a query for each request."""

    real = decode.BatchDecodeWithPagedKVCacheWrapper

    def workspace_size(self, **arguments: Any) -> tuple[int, int]:
        inspect.signature(self.real.workspace_size).bind(self, **arguments)
        pages = len(arguments["indices"])
        return _NEED if pages > _SPLIT else 0, _NEED + 4 * pages

    def plan(self, **arguments: Any) -> None:
        inspect.signature(self.real._plan_impl).bind(self, **arguments)
        super().plan(**arguments)

    def run(self, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.tensor_cores and self.lists[1].dtype is not torch.int32:
            raise ValueError("page ids are not int32")
        if not self.tensor_cores or self.backend == "fa3":
            refuse_different_strides(arguments["paged_kv_cache"])
        return super().run(**arguments)

    def queries(self) -> int:
        """Of each request; more than one need tensor cores."""
        queries = self.settings.get("q_len_per_req", 1)
        assert queries == 1 or self.tensor_cores
        return int(queries)

    def rows_of(self, lists: list[torch.Tensor]) -> int:
        return len(lists[-1]) * self.queries()

    def requests(self) -> list[tuple[int, int]]:
        return list(itertools.pairwise(range(0, self.rows + 1, self.queries())))


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """Paged decode, always with buffers."""

    def __init__(self, *, workspace_buffer: torch.Tensor, **arguments: Any) -> None:
        real = decode.CUDAGraphBatchDecodeWithPagedKVCacheWrapper
        inspect.signature(real.__init__).bind(self, workspace_buffer=workspace_buffer, **arguments)
        own = ("indptr_buffer", "indices_buffer", "last_page_len_buffer")
        buffers = {f"paged_kv_{name}": arguments.pop(name) for name in own}
        super().__init__(float_workspace_buffer=workspace_buffer, use_cuda_graph=True, **arguments, **buffers)


class _WithSinks(_Wrapper):
    """Compiled for a geometry. Its kernel takes sinks after the cache."""

    name: str

    def __init__(self, **arguments: Any) -> None:
        inspect.signature(getattr(attention, self.name).__init__).bind(self, **arguments)
        layer = ("q_data_type", "kv_data_type", "head_dim_qk", "head_dim_vo", "window_left")
        self.made_for = {name: arguments.pop(name) for name in layer}
        super().__init__(**arguments)

    def plan(self, **arguments: Any) -> None:
        super().plan(**arguments)
        dim = self.settings.get("head_dim")
        planned = {"head_dim_qk": dim, "head_dim_vo": dim, **self.settings}
        assert {name: planned[name] for name in self.made_for} == self.made_for
        assert not self.settings["logits_soft_cap"]

    def with_sinks(self, sink: torch.Tensor, arguments: dict[str, Any]) -> dict[str, Any]:
        assert "sinks" not in arguments
        assert sink.dtype == torch.float32
        return {**arguments, "sinks": sink}


class BatchAttentionWithAttentionSinkWrapper(_WithSinks, BatchPrefillWithPagedKVCacheWrapper):
    """Paged prefill."""

    name = "BatchAttentionWithAttentionSinkWrapper"

    def run(self, q: torch.Tensor, paged_kv_cache: Any, sink: torch.Tensor, **arguments: Any) -> Any:  # type: ignore[override] # as the real one
        return super().run(q=q, paged_kv_cache=paged_kv_cache, **self.with_sinks(sink, arguments))


class BatchDecodeWithAttentionSinkWrapper(_WithSinks, BatchDecodeWithPagedKVCacheWrapper):
    """Paged decode on tensor cores. The kernel sees the factor of the logits that its run is given."""

    name = "BatchDecodeWithAttentionSinkWrapper"

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.tensor_cores = True

    def run(self, q: torch.Tensor, paged_kv_cache: Any, sink: torch.Tensor, sm_scale: float, **arguments: Any) -> Any:  # type: ignore[override] # as the real one
        self.settings["sm_scale"] = sm_scale
        return super().run(q=q, paged_kv_cache=paged_kv_cache, **self.with_sinks(sink, arguments))


class BatchPrefillWithRaggedKVCacheWrapper(_Wrapper):
    """Ragged prefill. Scales are those of 8-bit caches alone."""

    real = prefill.BatchPrefillWithRaggedKVCacheWrapper

    def keys(self, index: int) -> int:
        first, end = self.lists[1].tolist()[index : index + 2]
        return int(end - first)

    def tokens(self, arguments: dict[str, Any], index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first, end = self.lists[1].tolist()[index : index + 2]
        key, value = arguments["k"], arguments["v"]
        if self.layout == "HND":
            key, value = key.transpose(0, 1), value.transpose(0, 1)
        return key[first:end], value[first:end]

    def scale(self, arguments: dict[str, Any]) -> float:
        k_scale = arguments.get("k_scale")
        return float(self.settings["sm_scale"] * (1.0 if k_scale is None else k_scale))

    def scaled(self, arguments: dict[str, Any]) -> bool:
        return arguments.get("v_scale") is not None
