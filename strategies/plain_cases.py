"""Plain cases of a backend: few requests without any feature, to see whether it can be called at all."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import gcd
from typing import TypeVar

from msgspec.structs import replace

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Granularity, Mode, Request, Scales, Step, Views
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.rope import Rope
from attnfuzz.strategies.supported import dtype_pairs, head_dims, latents

C = TypeVar("C", bound=AnyCase)

MOST = 20

_HEADS = 4, 2
"""Query heads and KV heads: a function that confuses heads with each other, or with tokens of a page, fails."""

_LARGER_PAGE, _LARGER_DIM = 16, 64
"""Bounds of another page size and head dim, for kernels that are slow on a CPU."""

_WINDOW, _SOFT_CAP = 3, 30.0
"""A window that cuts off keys of the plain lengths, and the soft cap of served models."""


def plain_cases(can: Capability, backend: str) -> tuple[Case, ...]:
    """Return up to MOST plain cases that `can` covers: its modes, layouts and dtypes, and each further feature once.

    Their outputs hold sentinels, so that rows which were never written show.
    """
    combinations = [_case(can, backend, *each) for each in product(_geometries(can), can.modes)]
    covered = [case for case in combinations if can.can_run(case)]
    if not covered:
        return spread(list(_needed(can, combinations)))
    varied = tuple(case for case in _varied(can, covered[0]) if can.can_run(case))
    return (*spread(covered, MOST - len(varied)), *varied)


def _varied(can: Capability, case: Case) -> Iterator[Case]:
    """Yield a case with each feature that a kernel may have, and with other sizes of pages and heads.

    A function that keeps the metadata of its first call has other metadata in these.
    """
    geometry = case.geometry
    if geometry.latent is None:
        page_size = max(size for size in can.page_sizes if size <= _LARGER_PAGE or size == min(can.page_sizes))
        yield _with_geometry(case, replace(geometry, page_size=page_size))
        dim = max(dim for dim in head_dims(can) if dim <= _LARGER_DIM or dim == min(head_dims(can)))
        yield _with_geometry(case, replace(geometry, head_dim_qk=dim, head_dim_vo=dim))
    yield _with_geometry(case, replace(geometry, window_left=_WINDOW))
    yield _with_geometry(case, replace(geometry, sinks=True))
    yield _with_geometry(case, replace(geometry, soft_cap=_SOFT_CAP))
    if Granularity.TENSOR in can.granularities:
        yield replace(case, scales=replace(case.scales, k=0.5, v=2.0))


def _with_geometry(case: Case, geometry: Geometry) -> Case:
    return replace(case, geometry=geometry, steps=(_step(case.steps[0].mode, geometry.page_size),))


def _needed(can: Capability, cases: Sequence[Case]) -> Iterator[Case]:
    """Yield each case with the first features of its geometry with which `can` covers it, for a kernel that needs some.

    The window cuts off keys of the plain lengths.
    """
    for case in cases:
        variants = product((-1, _WINDOW), (False, True), (0.0, _SOFT_CAP)) if can.always else ()
        geometries = (
            replace(case.geometry, window_left=left, sinks=sinks, soft_cap=cap) for left, sinks, cap in variants
        )
        changed = (replace(case, geometry=geometry) for geometry in geometries)
        if (found := next(filter(can.can_run, changed), None)) is not None:
            yield found


def spread(covered: Sequence[C], most: int = MOST) -> tuple[C, ...]:
    """Return up to `most` of these cases in their order, in which each value of each feature occurs."""
    count = len(covered)
    if count <= most:
        return tuple(covered)
    # A stride that divides no period of the product, near the golden section: neighbours are left out evenly.
    stride = next(each for each in range(round(count * 0.618), count) if gcd(each, count) == 1)
    return tuple(covered[at] for at in sorted(index * stride % count for index in range(most)))


def _case(can: Capability, backend: str, geometry: Geometry, mode: Mode) -> Case:
    rope = None
    if can.rotary:
        rope = Rope(share=can.rotary[0], pairing=can.pairings[0], scaling=can.rope_scalings[0])
    return Case(
        backend=backend,
        geometry=geometry,
        steps=(_step(mode, geometry.page_size),),
        padded_slot=can.padded_slots[0],
        rope=rope,
        scales=Scales(granularity=can.granularities[0], blocks=can.block_scales[0]),
        views=Views(query=can.query_views[0], kv=can.kv_views[0]),
    )


def _geometries(can: Capability) -> Iterator[Geometry]:
    """Yield a small geometry for each combination of layout and dtypes, or for each bucket."""
    if can.buckets:
        yield from (bucket.simplest for bucket in can.buckets)
        return
    dims, latent = head_dims(can), latents(can)[0]
    q_heads, kv_heads = _HEADS if latent is None else (2, 1)
    for layout, (dtype, kv_dtype) in product(can.layouts, dict.fromkeys(dtype_pairs(can))):
        yield Geometry(
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim_qk=dims[0] if latent is None else latent.rank + latent.rope,
            head_dim_vo=dims[0] if latent is None else latent.rank,
            page_size=min((size for size in can.page_sizes if size > kv_heads), default=max(can.page_sizes)),
            dtype=dtype,
            kv_dtype=kv_dtype,
            kv_layout=layout,
            latent=latent,
        )


def _step(mode: Mode, page_size: int) -> Step:
    """Return a step with a request whose keys need two pages, and one with fewer."""
    stride = 0 if not mode.speculative else 1 if mode is Mode.DECODE else 2
    queries = (stride, stride) if mode.uniform else (1, 2)
    lengths = zip(queries, (page_size + 1, 3), strict=True)
    requests = tuple(Request(slot=slot, q_len=q_len, kv_len=kv_len) for slot, (q_len, kv_len) in enumerate(lengths))
    tokens = sum(each.q_len for each in requests)
    return Step(mode=mode, requests=requests, padded_tokens=tokens, tokens_per_request=stride)
