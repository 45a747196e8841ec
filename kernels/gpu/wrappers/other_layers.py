"""Layers that an object is planned for: the judged one, and others before it that its backend has modules for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

from msgspec.structs import replace

from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.geometry import Geometry

_COMPARED: Final[Mapping[EarlierUse, Callable[[Geometry], object]]] = {
    EarlierUse.PLANNED_OTHER_HEADS: lambda it: (it.q_heads, it.kv_heads),
    EarlierUse.PLANNED_OTHER_HEAD_DIM: lambda it: (it.head_dim_qk, it.head_dim_vo),
    EarlierUse.PLANNED_OTHER_DTYPE: lambda it: (it.dtype, it.kv_dtype),
    EarlierUse.PLANNED_OTHER_WINDOW: lambda it: it.window_left,
    EarlierUse.PLANNED_OTHER_SOFT_CAP: lambda it: it.soft_cap,
}
"""The part of a geometry that differs, by use."""

FOR_OTHER_LAYERS: Final = frozenset(_COMPARED)
"""The uses that plan an object for another layer: a session that makes them takes `buckets`."""

_ARGUMENTS: Final[Mapping[str, Callable[[Geometry], object]]] = {
    "num_qo_heads": lambda it: it.q_heads,
    "num_heads": lambda it: it.q_heads,
    "num_kv_heads": lambda it: it.kv_heads,
    "head_dim": lambda it: it.head_dim_qk,
    "head_dim_qk": lambda it: it.head_dim_qk,
    "head_dim_vo": lambda it: it.head_dim_vo,
    "page_size": lambda it: it.page_size,
    "window_left": lambda it: it.window_left,
    "logits_soft_cap": lambda it: it.soft_cap,
    "q_data_type": lambda it: it.dtype.torch_dtype,
    "kv_data_type": lambda it: it.kv_dtype.torch_dtype,
    "o_data_type": lambda it: it.dtype.torch_dtype,
}
"""FlashInfer's names for the parts of a geometry that a plan takes."""


def layer_of(geometry: Geometry, *names: str) -> dict[str, Any]:
    """Return the arguments of a plan that describe a layer: its heads and dtypes, and those with these names."""
    every = ("num_qo_heads", "num_kv_heads", *names, "q_data_type", "kv_data_type")
    return {name: _ARGUMENTS[name](geometry) for name in every}


def uses_of(buckets: Sequence[Bucket]) -> tuple[EarlierUse, ...]:
    """Return the uses for which each geometry of `buckets` has another layer."""
    found = [geometry for bucket in buckets for geometry in _layers(bucket.simplest, [bucket])]
    return tuple(use for use, part in _COMPARED.items() if len(set(map(part, found))) > 1)


def other_layer(
    use: EarlierUse, layer: Mapping[str, Any], geometry: Geometry, buckets: Sequence[Bucket]
) -> dict[str, Any]:
    """Describe a layer in a plan's arguments that differs in the part that `use` names, else as little as possible."""
    part = _COMPARED[use]
    others = (each for each in _layers(geometry, buckets) if part(each) != part(geometry))
    # A small soft cap changes more logits.
    nearest = min(others, key=lambda each: (_distance(each, geometry), each.soft_cap))
    return {**layer, **{name: of(nearest) for name, of in _ARGUMENTS.items() if name in layer}}


def _distance(one: Geometry, other: Geometry) -> int:
    return sum(part(one) != part(other) for part in _COMPARED.values())


def _layers(geometry: Geometry, buckets: Sequence[Bucket]) -> Iterator[Geometry]:
    """Yield all layers of `buckets`, over the pages of `geometry`."""
    for bucket in buckets:
        for (q_heads, kv_heads), window, cap in product(bucket.heads, bucket.windows, bucket.soft_caps):
            yield replace(
                geometry,
                q_heads=q_heads,
                kv_heads=kv_heads,
                head_dim_qk=bucket.head_dim_qk,
                head_dim_vo=bucket.head_dim_vo,
                dtype=bucket.dtype,
                kv_dtype=bucket.kv_dtype,
                window_left=window,
                soft_cap=cap,
            )
