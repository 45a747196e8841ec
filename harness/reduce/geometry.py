"""Edits that make the geometry smaller and plainer."""

from collections.abc import Callable, Iterator
from functools import partial

from msgspec import NODEFAULT
from msgspec.structs import fields, replace

from attnfuzz.reference.case import Case, Request
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edits.cuts import lower, map_requests
from attnfuzz.reference.features.geometry import VECTOR
from attnfuzz.reference.geometry import Geometry, Latent

# Aligned rows need head dims that are multiples of 8. One that is no multiple of 16 is a clue.
_DIM_UNITS = (VECTOR, 8)


def drop_features(case: Case) -> Iterator[Case]:
    """Yield geometries without window, sinks, soft cap or fp8, and with the other defaults."""
    geometry = case.geometry
    plain = {each.name: each.default for each in fields(Geometry) if each.default is not NODEFAULT}
    del plain["dtype"], plain["latent"]
    plain["kv_dtype"] = geometry.dtype
    yield _with(case, replace(geometry, **plain))
    for name, value in plain.items():
        yield _with(case, replace(geometry, **{name: value}))
    yield _with(case, replace(geometry, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16))
    yield _with(case, replace(geometry, dtype=DType.BFLOAT16))
    for window in lower(geometry.window_left, 0):
        yield _with(case, replace(geometry, window_left=window))
    for window in lower(geometry.window_right, 0):
        yield _with(case, replace(geometry, window_right=window))


def drop_heads(case: Case) -> Iterator[Case]:
    """Yield fewer KV heads with the same group, then smaller groups."""
    geometry = case.geometry
    for kv_heads in lower(geometry.kv_heads, 1):
        yield _with(case, replace(geometry, kv_heads=kv_heads, q_heads=kv_heads * geometry.group))
    for group in lower(geometry.group, 1):
        yield _with(case, replace(geometry, q_heads=geometry.kv_heads * group))


def shrink_head_dims(case: Case) -> Iterator[Case]:
    """Yield smaller head dims; of a latent, each part by itself."""
    geometry = case.geometry
    if geometry.latent is not None:
        for part in ("rank", "rope", "nope", "vo"):
            for dim in lower_dims(getattr(geometry.latent, part)):
                yield _with(case, _with_latent(geometry, replace(geometry.latent, **{part: dim})))
        return
    for dim in lower_dims(geometry.head_dim_qk):
        if geometry.head_dim_vo == geometry.head_dim_qk:
            yield _with(case, replace(geometry, head_dim_qk=dim, head_dim_vo=dim))
        yield _with(case, replace(geometry, head_dim_qk=dim))
    for dim in lower_dims(geometry.head_dim_vo):
        yield _with(case, replace(geometry, head_dim_vo=dim))


def to_head_dims(head_dims: tuple[int, ...]) -> tuple[Callable[[Case], Iterator[Case]], ...]:
    """Return edits to smaller ones of `head_dims`, the only ones of a backend; none if that is empty."""

    def smaller(case: Case) -> Iterator[Case]:
        """Yield each smaller head dim for both K and V, then for one of them."""
        now = case.geometry
        for dim in sorted(head_dims):
            for changed in ({"head_dim_qk": dim, "head_dim_vo": dim}, {"head_dim_qk": dim}, {"head_dim_vo": dim}):
                if all(dim <= getattr(now, name) for name in changed):
                    yield _with(case, replace(now, **changed))

    return (smaller,) if head_dims else ()


def shrink_pages(case: Case) -> Iterator[Case]:
    """Yield smaller pages, with lengths that fill as many pages as before, or with the same lengths."""
    old = case.geometry.page_size
    size = 1
    while size < old:
        yield on_pages(case, size)
        yield _with(case, replace(case.geometry, page_size=size))
        size *= 2


def on_pages(case: Case, size: int) -> Case:
    """Return `case` with pages of `size`. On smaller ones, lengths keep their number of pages and their last slot."""
    old = case.geometry.page_size
    changed = _with(case, replace(case.geometry, page_size=size))
    return map_requests(changed, partial(_same_pages, old, size)) if size < old else changed


def _same_pages(old: int, new: int, request: Request) -> Request:
    """Return `request` with a KV length that fills as many pages of `new` tokens as before pages of `old`."""
    pages, rest = divmod(request.kv_len, old)
    return replace(request, kv_len=pages * new + min(rest, new))


def lower_dims(dim: int) -> Iterator[int]:
    """Yield head dims below `dim` that keep rows aligned, multiples of a vector first."""
    for unit in _DIM_UNITS:
        for units in lower(-(-dim // unit), 1):
            yield units * unit


def _with(case: Case, geometry: Geometry) -> Case:
    return replace(case, geometry=geometry)


def _with_latent(geometry: Geometry, latent: Latent) -> Geometry:
    return replace(geometry, latent=latent, head_dim_qk=latent.rank + latent.rope, head_dim_vo=latent.rank)


EDITS = (drop_features, drop_heads, shrink_head_dims, shrink_pages)
