"""The paged KV cache of a call: one tensor or a pair, HND or NHD, or latents."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from attnfuzz.kernels.meaning.entry_point import Arguments, Parameter, Role
from attnfuzz.kernels.meaning.forms import Form, WrongForm

_ORDER = {"HND": ("kv heads", "slots"), "NHD": ("slots", "kv heads")}


@dataclass(frozen=True)
class Pool:
    """The target of a call's page ids; `name` is its argument."""

    name: str
    pages: int
    page_size: int
    kv_heads: int
    head_dim_vo: int


def pool_forms(arguments: Arguments, layout: str) -> Mapping[str, Form]:
    """Return the forms of a cache of K and V, [pages, 1 or 2, ...] or a pair of [pages, ...]. Raises WrongForm."""
    order = _ORDER.get(str(layout))
    if order is None:
        raise WrongForm("kv_layout", f"kv_layout is {layout!r}, but must be HND or NHD")
    if isinstance(arguments["kv_cache"], torch.Tensor):
        return {"kv_cache": Form(Role.CACHE, (("pages", "K and V", *order, "qk dim"),))}
    return {
        "kv_cache[0]": Form(Role.CACHE, (("pages", *order, "qk dim"),)),
        "kv_cache[1]": Form(Role.CACHE, (("pages", *order, "vo dim"),)),
    }


def pool_of(arguments: Arguments, layout: str) -> Pool:
    """Return the cache of a call with checked forms. Raises WrongForm for pages without slots."""
    cache = arguments["kv_cache"]
    key, value = (cache, cache) if isinstance(cache, torch.Tensor) else cache
    return replace(pool_of_one("kv_cache", key, layout), head_dim_vo=value.shape[-1])


def pool_of_one(name: str, cache: torch.Tensor, layout: str) -> Pool:
    """Return the cache in one tensor, [..., dim], HND or NHD; raises as `pool_of`."""
    heads, slots = (-3, -2) if layout == "HND" else (-2, -3)
    return _with_slots(Pool(name, cache.shape[0], cache.shape[slots], cache.shape[heads], cache.shape[-1]))


LATENTS = Form(Role.CACHE, (("pages", "slots", "qk dim"), ("pages", "kv heads", "slots", "qk dim")))


def token_major(parameter: Parameter, cache: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield K and V of a cache, [pages, slots, kv heads, dim] each; latents or a half are a single tensor."""
    axes = list(parameter.axes)
    if "kv heads" not in axes:
        yield cache.unsqueeze(2) if cache.ndim < 4 else cache
        return
    order = [axes.index(axis) for axis in ("pages", "slots", "kv heads")]
    if "K and V" not in axes:
        yield cache.permute(*order, cache.ndim - 1)
        return
    yield from cache.permute(axes.index("K and V"), *order, cache.ndim - 1)


def latent_pool(arguments: Arguments) -> Pool:
    """Return the latents of an MLA call, [pages, slots, dim] or [pages, 1, slots, dim]; raises as `pool_of`."""
    cache, rank = arguments["kv_cache"], arguments["kv_lora_rank"]
    if not 0 < rank <= cache.shape[-1]:
        raise WrongForm("kv_lora_rank", f"kv_lora_rank is {rank}, where latents have {cache.shape[-1]} elements")
    return _with_slots(Pool("kv_cache", cache.shape[0], cache.shape[-2], 1, rank))


def _with_slots(pool: Pool) -> Pool:
    if not pool.page_size:
        raise WrongForm(pool.name, f"{pool.name} has pages without slots")
    return pool
