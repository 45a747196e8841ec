"""Copies out of a KV cache and within it: whether a call names the tokens that its step wants, for the right places."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

_CACHES = {"key_out": ("k_cache", "kv_cache"), "value_out": ("v_cache",)}
"""The caches from which the rows of a gather come."""

_FACTORS = {"key_out": "k_scale", "value_out": "v_scale"}


class NamedTokens(NamedTuple):
    """The tokens that a call names: their `places` in the result, int64 [n], and their contents [n, heads, dim]."""

    places: torch.Tensor
    contents: torch.Tensor


class DueTokens(NamedTuple):
    """The tokens that a result must have: their places, int64 [n], and their least and greatest contents."""

    places: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor | None


def named_tokens(result: str, arguments: Mapping[str, Any]) -> NamedTokens | None:
    """Return the tokens that a copy puts into one of its results, None if the arguments are those of no known copy."""
    if result in _CACHES:
        return _gathered(result, arguments)
    pairs, sources, targets = (arguments.get(name) for name in ("page_pairs", "source_slots", "target_slots"))
    if not isinstance(arguments.get(result), torch.Tensor):
        return None
    cache = _token_major(arguments, result)
    size = cache.shape[1]
    if isinstance(pairs, torch.Tensor):
        slots = torch.arange(size)
        sources, targets = ((each.long()[:, None] * size + slots).flatten() for each in pairs.unbind(1))
    if not isinstance(sources, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return None
    tokens = cache.flatten(0, 1)
    inside = (sources >= 0) & (sources < len(tokens))
    return (
        NamedTokens(targets.long(), tokens[sources.long().where(inside, torch.tensor(0))])
        if bool(inside.all())
        else None
    )


def mistake(named: NamedTokens, due: DueTokens) -> str:
    """Return the first difference between the tokens that a call names and those that are due, "" without one."""
    last = {place: row for row, place in enumerate(named.places.tolist())}
    for row, place in enumerate(due.places.tolist()):
        if place not in last:
            return f"it names no token for place {place}"
        if not _fits(named.contents[last[place]], due, row):
            return f"the token that it names for place {place} is another one"
    others = last.keys() - set(due.places.tolist())
    return f"it names a token for place {min(others)}, which must not change" if others else ""


def _gathered(result: str, arguments: Mapping[str, Any]) -> NamedTokens | None:
    """Return the rows of a gather by its page table, and the first token and the first row of each request."""
    lists = [arguments.get(name) for name in ("block_tables", "seq_starts", "out_indptr")]
    cache = next((name for name in _CACHES[result] if isinstance(arguments.get(name), torch.Tensor)), None)
    if cache is None or not all(isinstance(each, torch.Tensor) for each in lists):
        return None
    table, first, rows = (each for each in lists if isinstance(each, torch.Tensor))
    pool = _token_major(arguments, cache)
    counts = rows.diff()
    request = torch.repeat_interleave(torch.arange(len(counts)), counts)
    token = torch.arange(len(request)) - rows[request] + first[request]
    column = token // pool.shape[1]
    if bool((column >= table.shape[1]).any()):
        return None
    page = table[request, column].long()
    if bool(((page < 0) | (page >= len(pool))).any()):
        return None
    found = pool[page, token % pool.shape[1]]
    factor = arguments.get(_FACTORS[result], 1.0)
    if found.dtype != arguments[result].dtype:
        found = found.double() * factor
    return NamedTokens(torch.arange(int(rows[0]), int(rows[-1])), found)


def _token_major(arguments: Mapping[str, Any], name: str) -> torch.Tensor:
    """Return a cache as [pages, slots, heads, dim]."""
    cache: torch.Tensor = arguments[name]
    if cache.ndim == 3:
        return cache.unsqueeze(2)
    return cache.transpose(1, 2) if arguments.get("kv_layout", "HND") == "HND" else cache


def _fits(content: torch.Tensor, due: DueTokens, row: int) -> bool:
    low, high = due.low[row], None if due.high is None else due.high[row]
    content = content.reshape(low.shape)
    if high is not None and content.dtype == torch.float64:
        return bool(((low.double() <= content) & (content <= high.double())).all())
    return torch.equal(content.contiguous().view(torch.uint8), low.contiguous().view(torch.uint8))
