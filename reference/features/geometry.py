"""Features of the geometry, and of the keys that queries see."""

from attnfuzz.reference.case import Case, Mask
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edits import removals
from attnfuzz.reference.edits.removals import case_with, geometry_with
from attnfuzz.reference.features.classes import (
    GROUPS,
    HEAD_DIMS,
    KV_DTYPES,
    KV_HEADS,
    LATENTS,
    PAGE_SIZES,
    VALUE_DIMS,
)
from attnfuzz.reference.features.moments import Moment, of_steps
from attnfuzz.reference.features.row import but, classed, flag, grouped, of_case, only, removable, single, size
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.masks import applies

VECTOR = 16
"""Number of elements of a head that kernels handle at a time. The rest often takes another code path."""

_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)


def _rest_of_a_vector(case: Case) -> bool:
    geometry = case.geometry
    return geometry.latent is None and bool(geometry.head_dim_qk % VECTOR or geometry.head_dim_vo % VECTOR)


def _value_dim(case: Case) -> str:
    return VALUE_DIMS.of(case.geometry.head_dim_qk, case.geometry.head_dim_vo)


GEOMETRY = grouped(
    "geometry",
    of_case(
        classed("KV heads", KV_HEADS, lambda case: case.geometry.kv_heads),
        "geometry.kv_heads",
        size("several KV heads", but("1"), removals.one_kv_head),
    ),
    of_case(
        classed("group", GROUPS, lambda case: case.geometry.group),
        "geometry.q_heads geometry.kv_heads",
        size("grouped heads", but("1"), removals.no_groups),
    ),
    of_case(
        classed("head dim", HEAD_DIMS, lambda case: case.geometry.head_dim_qk),
        "geometry.head_dim_qk",
        removable(
            f"a head dim that is no multiple of {VECTOR}",
            only(),
            removals.multiples_of(VECTOR),
            present=_rest_of_a_vector,
        ),
    ),
    of_case(
        single("V dim", VALUE_DIMS.names, _value_dim),
        "geometry.head_dim_vo",
        size("V dim", but("as K's"), removals.equal_head_dims),
    ),
    of_case(classed("latent", LATENTS, lambda case: case.geometry.latent), "geometry.latent"),
    of_case(classed("page size", PAGE_SIZES, lambda case: case.geometry.page_size), "geometry.page_size"),
    of_case(
        single("dtype", _DTYPES, lambda case: case.geometry.dtype),
        "geometry.dtype",
        removable("16 bits", but(DType.FLOAT32), removals.in_fp32),
    ),
    of_case(
        classed("KV dtype", KV_DTYPES, lambda case: case.geometry.kv_dtype),
        "geometry.kv_dtype",
        removable("fp8 KV", but("that of the queries"), removals.no_fp8),
        filed={"fp8 kv": only("float8_e4m3")},
        formerly={"fp8 kv": "KV dtype=float8_e4m3"},
    ),
    of_case(
        single("layout", KvLayout, lambda case: case.geometry.kv_layout),
        "geometry.kv_layout",
        removable("NHD layout", but(KvLayout.HND), geometry_with(kv_layout=KvLayout.HND)),
    ),
    of_case(
        flag("sinks", lambda case: case.geometry.sinks),
        "geometry.sinks",
        removable("sinks", but("none"), removals.no_sinks),
        filed={"sinks": but("none")},
    ),
    of_case(
        flag("soft cap", lambda case: case.geometry.soft_cap > 0),
        "geometry.soft_cap",
        removable("soft cap", but("none"), geometry_with(soft_cap=0.0)),
        filed={"soft cap": but("none")},
    ),
)


def _window(moment: Moment) -> str:
    left = moment.case.geometry.window_left
    if left < 0:
        return "none"
    if left == 0:
        return "a query's own key"
    return "cuts keys off" if any(kv_len > left + 1 for _, kv_len in moment.asking) else "longer than all keys"


def _mask(moment: Moment) -> str:
    return moment.case.mask if applies(moment.case, moment.step) else Mask.CAUSAL


_FORMER_MASKS = {
    "full mask": Mask.FULL,
    "tree": Mask.TREE,
    "custom mask": Mask.CUSTOM,
    "mask with empty rows": Mask.EMPTY_ROWS,
}

SEEN_KEYS = grouped(
    "visible keys",
    of_steps(
        single("window", ("none", "a query's own key", "cuts keys off", "longer than all keys"), _window),
        "geometry.window_left",
        removable("window", but("none"), removals.without_window),
        removable("keys outside of the window", only("cuts keys off"), removals.no_window),
        removable("window of one key", only("a query's own key"), removals.wider_window),
        filed={"window": but("none")},
    ),
    of_steps(
        single("mask", Mask, _mask),
        "mask",
        removable("mask", but(Mask.CAUSAL), case_with(mask=Mask.CAUSAL)),
        removable("mask with holes", but(Mask.CAUSAL, Mask.FULL), case_with(mask=Mask.FULL)),
        removable("rows that a mask hides all keys from", only(Mask.EMPTY_ROWS), case_with(mask=Mask.CUSTOM)),
        filed={word: only(mask) for word, mask in _FORMER_MASKS.items()},
        formerly={word: f"mask={mask}" for word, mask in _FORMER_MASKS.items()},
    ),
)
