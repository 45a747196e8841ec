"""Buckets: the geometries that one set of compiled modules covers."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from attnfuzz.reference.case import Mode, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout, Latent

_Part = tuple[Callable[[Any], str], Any, tuple[Any, ...]]


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """The geometries, query strides and modes that a backend has modules for.

    `heads` are pairs of query heads and KV heads. `windows` are values of `window_left` (-1: none) and `soft_caps`
    values of `soft_cap`: whether there is one at all is often a compile-time choice. `strides` are the numbers of draft
    tokens of the speculative modes (`Step.tokens_per_request`, without decode's 1), empty for a backend that takes any.
    `modes` are the modes with modules, empty for all modes of the backend. Put the simplest option of each field first:
    minimizing prefers it.

    Raises ValueError for a bucket without any geometry, or with one that cannot exist.
    """

    dtype: DType
    kv_dtype: DType
    head_dim_qk: int
    head_dim_vo: int
    heads: tuple[tuple[int, int], ...]
    page_sizes: tuple[int, ...]
    layouts: tuple[KvLayout, ...]
    windows: tuple[int, ...] = (-1,)
    sinks: tuple[bool, ...] = (False,)
    soft_caps: tuple[float, ...] = (0.0,)
    latent: Latent | None = None
    strides: tuple[int, ...] = ()
    modes: tuple[Mode, ...] = ()

    def __post_init__(self) -> None:
        for name in ("heads", "page_sizes", "layouts", "windows", "sinks", "soft_caps"):
            if not getattr(self, name):
                raise ValueError(f"a bucket without {name} covers nothing")
        for q_heads, kv_heads in self.heads:
            if q_heads % kv_heads or (self.latent and kv_heads != 1):
                raise ValueError(f"a bucket has {q_heads} query heads for {kv_heads} KV heads, which can't be shared")
        latent = self.latent
        if latent and (self.head_dim_qk, self.head_dim_vo) != (latent.rank + latent.rope, latent.rank):
            raise ValueError(f"the head dims of a bucket with {latent} are its rank + rope and its rank")
        if any(stride < 2 for stride in self.strides):
            raise ValueError("the strides of a bucket are numbers of draft tokens, 2 at least: 1 is always covered")

    @property
    def simplest(self) -> Geometry:
        """The geometry made of the first option of each field."""
        (q_heads, kv_heads), *_ = self.heads
        return Geometry(
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim_qk=self.head_dim_qk,
            head_dim_vo=self.head_dim_vo,
            page_size=self.page_sizes[0],
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            kv_layout=self.layouts[0],
            window_left=self.windows[0],
            sinks=self.sinks[0],
            soft_cap=self.soft_caps[0],
            latent=self.latent,
        )

    def covers(self, geometry: Geometry) -> bool:
        """Return whether a geometry is one of this bucket's."""
        return all(value in options for _, value, options in self._parts(geometry))

    def differences(self, geometry: Geometry) -> tuple[tuple[str, str], ...]:
        """Return, in words, pairs (a property of the geometry that this bucket lacks, the options it has instead)."""
        return tuple(
            (words(value), " or ".join(map(words, options)))
            for words, value, options in self._parts(geometry)
            if value not in options
        )

    def why_not_step(self, step: Step) -> str | None:
        """Return the property of a step over a covered geometry for which there is no module, as a clause, or None."""
        if self.modes and step.mode not in self.modes:
            return f"mode {step.mode} over this geometry (it has modules for {', '.join(self.modes)})"
        if self.strides and step.mode.speculative and step.tokens_per_request not in {1, *self.strides}:
            return f"{step.tokens_per_request} draft tokens (it has modules for {', '.join(map(str, self.strides))})"
        return None

    def _parts(self, geometry: Geometry) -> Iterator[_Part]:
        """Yield (function that words a value, the geometry's value, this bucket's options) for each property."""
        head_dims, heads = (self.head_dim_qk, self.head_dim_vo), (geometry.q_heads, geometry.kv_heads)
        yield "head dims {0[0]} and {0[1]}".format, (geometry.head_dim_qk, geometry.head_dim_vo), (head_dims,)
        yield "{0[0]} query heads on {0[1]} KV heads".format, heads, self.heads
        yield "page size {}".format, geometry.page_size, self.page_sizes
        yield "{} queries".format, geometry.dtype, (self.dtype,)
        yield "a {} KV cache".format, geometry.kv_dtype, (self.kv_dtype,)
        yield "KV layout {}".format, geometry.kv_layout, self.layouts
        yield lambda n: f"a window of {n + 1} keys" if n >= 0 else "no window", geometry.window_left, self.windows
        yield lambda has: "attention sinks" if has else "no attention sinks", geometry.sinks, self.sinks
        yield lambda cap: f"a soft cap of {cap:g}" if cap else "no soft cap", geometry.soft_cap, self.soft_caps
        yield lambda it: f"latents of {it.rank} + {it.rope}" if it else "no latents", geometry.latent, (self.latent,)
