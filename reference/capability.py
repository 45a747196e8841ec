"""What a backend can do, so that strategies draw what it supports and `attnfuzz backends` can say why not."""

import msgspec

from attnfuzz.reference.case import Case, KvView, Launch, Mode, QueryView
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout
from attnfuzz.reference.related import related

FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """The cases that a backend supports. An empty `fp8_kv` and the like mean that the feature is never drawn.

    `latent` backends run multi-head latent attention, the others do not. `max_head_dim` bounds both head dims.
    `graph_modes` are the modes that can be captured. `unequal_head_dims` allows head_dim_qk != head_dim_vo.
    """

    modes: tuple[Mode, ...]
    graph_modes: tuple[Mode, ...] = ()
    dtypes: tuple[DType, ...] = FLOATS
    fp8_kv: bool = False
    latent: bool = False
    max_head_dim: int = 256
    unequal_head_dims: bool = False
    page_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    layouts: tuple[KvLayout, ...] = (KvLayout.HND, KvLayout.NHD)
    windows: bool = False
    sinks: bool = False
    soft_cap: bool = False
    kv_scales: bool = False
    padding: bool = False
    empty_kv: bool = True
    kv_shorter_than_q: bool = True
    query_views: tuple[QueryView, ...] = (QueryView.CONTIGUOUS,)
    kv_views: tuple[KvView, ...] = (KvView.SEPARATE,)

    def why_not(self, case: Case) -> str | None:
        """Why `case` is outside of this capability, in one clause; None if it is inside."""
        reason = _why_not_geometry(self, case.geometry) or _why_not_steps(self, case)
        if reason is None and case.relation is not None:
            other = _why_not_steps(self, related(case).case)
            reason = other and f"{other} ({case.relation.words})"
        return reason


def _why_not_geometry(can: Capability, geometry: Geometry) -> str | None:
    if geometry.dtype not in can.dtypes:
        return f"dtype {geometry.dtype} is not one of {', '.join(can.dtypes)}"
    if geometry.kv_dtype is not geometry.dtype and not (can.fp8_kv and geometry.kv_dtype is DType.FLOAT8_E4M3):
        return f"a {geometry.kv_dtype} KV cache under {geometry.dtype} queries"
    if (geometry.latent is not None) != can.latent:
        return "multi-head latent attention" if geometry.latent else "attention without latents"
    if max(geometry.head_dim_qk, geometry.head_dim_vo) > can.max_head_dim:
        return f"head dims above {can.max_head_dim}"
    if geometry.head_dim_qk != geometry.head_dim_vo and not (can.unequal_head_dims or can.latent):
        return "head dims of K and V that differ"
    if geometry.page_size not in can.page_sizes:
        return f"page size {geometry.page_size}"
    if geometry.kv_layout not in can.layouts:
        return f"KV layout {geometry.kv_layout}"
    for name, present, supported in (
        ("a sliding window", geometry.window_left >= 0, can.windows),
        ("attention sinks", geometry.sinks, can.sinks),
        ("a logit soft cap", geometry.soft_cap != 0, can.soft_cap),
    ):
        if present and not supported:
            return name
    return None


def _why_not_steps(can: Capability, case: Case) -> str | None:
    if (case.scales.k != 1 or case.scales.v != 1) and not can.kv_scales:
        return "KV scales other than 1"
    if case.views.query not in can.query_views:
        return f"query view {case.views.query}"
    if case.views.kv not in can.kv_views:
        return f"KV view {case.views.kv}"
    for step in case.steps:
        if step.mode not in can.modes:
            return f"mode {step.mode}"
        if step.launch is not Launch.EAGER and step.mode not in can.graph_modes:
            return f"graphs of mode {step.mode}"
        if step.padded and not can.padding:
            return "padded batches"
        for request in step.requests:
            if request.kv_len == 0 and request.q_len and not can.empty_kv:
                return "queries of a request without KV"
            if 0 < request.kv_len < request.q_len and not can.kv_shorter_than_q:
                return "a request with fewer keys than queries"
    return None
