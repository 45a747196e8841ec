"""One launch on a paged KV cache, as its kernel received it: the basis of claims about metadata."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnfuzz.kernels.meaning import Parameter, RequestSpan, Role
from attnfuzz.kernels.meaning.call_pool import token_major
from attnfuzz.kernels.meaning.forms import tensor_of, window_of
from attnfuzz.kernels.meaning.known import entry_points
from attnfuzz.kernels.meaning.spans import cumulative_rows, paged_spans
from attnfuzz.reference.geometry import KvLayout

_OF_FUNCTIONS = {"query", "k_cache", "v_cache", "block_tables", "seq_lens", "cum_seq_lens_q", "scale"}
"""The arguments of a user's function, as `kernels.functions.function_backend` documents them."""

_SLOTS = {KvLayout.NHD: 1, KvLayout.HND: 2}
"""The axis of slots in such a cache."""


@dataclass(frozen=True)
class PagedCall:
    """The requests of a call, its scalars, and its tensors as views.

    query [rows, q heads, dim], table [requests, columns], key and value [pages, slots, kv heads, dim]. `caches` are the
    pools as passed to the kernel; the values of latents are their first `rank` elements.
    """

    spans: tuple[RequestSpan, ...]
    query: torch.Tensor
    table: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    caches: tuple[tuple[Parameter, torch.Tensor], ...]
    rank: int | None
    bmm1_scale: float
    bmm2_scale: float
    window_left: int
    sinks: torch.Tensor | None

    @property
    def page_size(self) -> int:
        """The number of slots in a page."""
        return self.key.shape[1]

    def span_of(self, row: int) -> int | None:
        """Return the request that owns this row of the output, or None."""
        for index, span in enumerate(self.spans):
            if span.first_row <= row < span.first_row + span.q_len:
                return index
        return None

    def dense(self) -> "PagedCall | None":
        """Return the call with its caches read as if contiguous, or None if that would exceed their memory."""
        if any(cache.numel() > extent(cache) for _, cache in self.caches):
            return None
        caches = tuple(
            (parameter, cache.as_strided(cache.shape, torch.empty(cache.shape, device="meta").stride()))
            for parameter, cache in self.caches
        )
        key, value = _key_and_value(caches, self.rank)
        return replace(self, key=key, value=value)

    def reshaped(self) -> "PagedCall":
        """Return the call with the axes of slots and KV heads exchanged by a reshape, which moves no element."""
        return replace(self, key=_reshaped(self.key), value=_reshaped(self.value))

    def pages_with(self, keys: torch.Tensor, head: int) -> list[int]:
        """Return the pages that begin with these keys [n, dim], n at most a page's slots."""
        pool = self.key.view(torch.uint8) if self.key.element_size() == 1 else self.key
        own = keys.to(pool.device)
        own = own.view(torch.uint8) if own.element_size() == 1 else own
        found: list[int] = (pool[:, : len(own), head] == own).flatten(1).all(dim=1).nonzero().flatten().tolist()
        return found

    def gathered(self, pages: torch.Tensor, count: int, head: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the first `count` keys and values [count, 1, dim] on these pages, or None if one is out of range."""
        needed = pages[: -(-count // self.page_size)].to(torch.int64)
        if len(needed) * self.page_size < count or bool(((needed < 0) | (needed >= self.key.shape[0])).any()):
            return None
        return _taken(self.key, needed, count, head), _taken(self.value, needed, count, head)


def _key_and_value(
    caches: tuple[tuple[Parameter, torch.Tensor], ...], rank: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the pools of keys and of values. Values of latents are their first `rank` elements."""
    pools = [pool for parameter, cache in caches for pool in token_major(parameter, cache)]
    return pools[0], pools[1] if len(pools) > 1 else pools[0][..., :rank]


def _reshaped(pool: torch.Tensor) -> torch.Tensor:
    pages, slots, kv_heads, dim = pool.shape
    if pool.stride(1) >= pool.stride(2):
        return pool.reshape(pages, kv_heads, slots, dim).transpose(1, 2)
    return pool.transpose(1, 2).reshape(pages, slots, kv_heads, dim)


def extent(tensor: torch.Tensor) -> int:
    """Return the number of elements that a tensor spans, gaps included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _taken(pool: torch.Tensor, pages: torch.Tensor, count: int, head: int) -> torch.Tensor:
    # 8-bit floats can't be indexed on every device.
    bits = pool.view(torch.uint8) if pool.element_size() == 1 else pool
    return bits[pages.to(pool.device), :, head : head + 1].flatten(0, 1)[:count].view(pool.dtype)


def paged_call(op: str, arguments: Mapping[str, Any], layout: KvLayout = KvLayout.NHD) -> PagedCall | None:
    """Return the launch of `op` if it is attention over pages and its metadata stays inside its tensors, else None.

    The caches of a user's function have the `layout` of the case.
    """
    entry = entry_points().get(op)
    try:
        if entry is None:
            return _of_function(arguments, layout) if arguments.keys() >= _OF_FUNCTIONS else None
        return _paged_call(arguments, entry.parameters(arguments), entry.spans(arguments))
    except (ValueError, KeyError, IndexError, TypeError, RuntimeError):
        # Arguments that make no sense to the entry point give no candidates.
        return None


def _of_function(arguments: Mapping[str, Any], layout: KvLayout) -> PagedCall | None:
    """Return the launch of a user's function. One with factors for each key has keys that its cache does not hold."""
    if arguments.get("k_scales") is not None:
        return None
    slots = _SLOTS[layout]
    axes = ("pages", "slots", "kv heads") if slots == 1 else ("pages", "kv heads", "slots")
    parameters = [
        Parameter("query", Role.QUERY, ("tokens", "q heads", "qk dim")),
        Parameter("k_cache", Role.CACHE, (*axes, "qk dim")),
        Parameter("v_cache", Role.CACHE, (*axes, "vo dim")),
        Parameter("block_tables", Role.PAGE_TABLE, ("requests", "columns")),
    ]
    if arguments.get("sinks") is not None:
        parameters.append(Parameter("sinks", Role.SINKS, ("q heads",)))
    lengths = arguments["seq_lens"]
    rows = cumulative_rows(arguments["cum_seq_lens_q"], len(lengths))
    spans = paged_spans(rows, lengths, arguments["block_tables"], arguments["k_cache"].shape[slots])
    scales = {
        "bmm1_scale": arguments["scale"] * arguments.get("k_scale", 1.0),
        "bmm2_scale": arguments.get("v_scale", 1.0),
    }
    return _paged_call({**arguments, **scales}, tuple(parameters), spans)


def _paged_call(
    arguments: Mapping[str, Any], parameters: tuple[Parameter, ...], spans: tuple[RequestSpan, ...]
) -> PagedCall | None:
    by_role = {role: [each for each in parameters if each.role is role] for role in Role}
    tables, caches = by_role[Role.PAGE_TABLE], by_role[Role.CACHE]
    if len(tables) != 1 or not caches or not spans:
        return None
    table = tensor_of(arguments, tables[0].name)
    if table.ndim != 2:
        return None
    pools = tuple((each, tensor_of(arguments, each.name)) for each in caches)
    rank = arguments.get("kv_lora_rank")
    key, value = _key_and_value(pools, rank)
    query = tensor_of(arguments, by_role[Role.QUERY][0].name)
    sinks = by_role[Role.SINKS]
    return PagedCall(
        spans=spans,
        query=query if query.ndim == 3 else query.flatten(0, 1),
        table=table,
        key=key,
        value=value,
        caches=pools,
        rank=rank,
        bmm1_scale=float(arguments.get("bmm1_scale", 1.0)),
        bmm2_scale=float(arguments.get("bmm2_scale", 1.0)),
        window_left=window_of(arguments),
        sinks=tensor_of(arguments, sinks[0].name) if sinks else None,
    )
