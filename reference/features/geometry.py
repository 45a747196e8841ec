"""Features of the geometry, and of the keys that queries see."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from attnfuzz.reference.case import Case, Granularity, Mask, Mode
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
from attnfuzz.reference.features.moments import Moment
from attnfuzz.reference.features.row import (
    Violation,
    but,
    classed,
    flag,
    grouped,
    of_case,
    of_steps,
    offers,
    only,
    removable,
    single,
    size,
)
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.masks import applies

if TYPE_CHECKING:
    from attnfuzz.reference.capability import Capability

VECTOR = 16
"""Number of elements of a head that kernels handle at a time. The rest often takes another code path."""

MAX_CHUNK = 1 << 20
"""Maximum number of tokens of a chunk of attention."""

_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)


def _heads_in_words(case: Case) -> str:
    queries, keys = case.geometry.q_heads, case.geometry.kv_heads
    return f"{queries} query head{'s' * (queries != 1)} on {keys} KV head{'s' * (keys != 1)}"


def _latent_in_words(case: Case) -> str:
    latent = case.geometry.latent
    if latent is None:
        return ""
    return f"latent {latent.rank} + rope {latent.rope} (prefill: nope {latent.nope}, vo {latent.vo})"


def _head_dims_in_words(case: Case) -> str:
    qk, vo = case.geometry.head_dim_qk, case.geometry.head_dim_vo
    return f"head dim {qk}" if qk == vo else f"head dims {qk} (qk) and {vo} (vo)"


def _dtypes_in_words(case: Case) -> str:
    queries, cache = case.geometry.dtype, case.geometry.kv_dtype
    kept = " queries, not quantised," * case.queries.kept
    return str(queries) if cache is queries else f"{queries}{kept} on {cache} KV"


def _rest_of_a_vector(case: Case) -> bool:
    geometry = case.geometry
    return geometry.latent is None and bool(geometry.head_dim_qk % VECTOR or geometry.head_dim_vo % VECTOR)


def _refused_head_dims(can: "Capability", case: Case) -> str | None:
    head_dims = (case.geometry.head_dim_qk, case.geometry.head_dim_vo)
    if can.head_dims and not set(head_dims) <= set(can.head_dims):
        return f"head dims other than {', '.join(map(str, can.head_dims))}"
    return f"head dims above {can.max_head_dim}" if max(head_dims) > can.max_head_dim else None


def _value_dim(case: Case) -> str:
    return VALUE_DIMS.of(case.geometry.head_dim_qk, case.geometry.head_dim_vo)


def _value_dims(can: "Capability") -> Iterable[str]:
    # With latents, K is the whole one, and V a part of it.
    return ("smaller",) if can.latent else VALUE_DIMS.names if can.unequal_head_dims else ("as K's",)


def _refused_value_dim(can: "Capability", case: Case) -> str | None:
    equal = case.geometry.head_dim_qk == case.geometry.head_dim_vo
    return None if equal or can.unequal_head_dims or can.latent else "head dims of K and V that differ"


def _refused_latent(can: "Capability", case: Case) -> str | None:
    latent = case.geometry.latent is not None
    return None if latent == can.latent else "multi-head latent attention" if latent else "attention without latents"


def _kv_dtypes(can: "Capability") -> Iterable[str]:
    plain = ("that of the queries",) if Granularity.TENSOR in can.granularities else ()
    return (*plain, *(["float8_e4m3"] if can.fp8_kv else []), *(["nvfp4"] if can.nvfp4_kv else []))


def _refused_kv_dtype(can: "Capability", case: Case) -> str | None:
    dtype, kv_dtype = case.geometry.dtype, case.geometry.kv_dtype
    return None if kv_dtype in (dtype, *can.kv_dtypes) else f"a {kv_dtype} KV cache under {dtype} queries"


GEOMETRY = grouped(
    "geometry",
    of_case(
        classed("KV heads", KV_HEADS, lambda case: case.geometry.kv_heads),
        "geometry.kv_heads",
        size("several KV heads", but("1"), removals.one_kv_head),
        supported=lambda can: ("1",) if can.latent else KV_HEADS.names,
        lack="the backend has latents: one KV head",
        printed=lambda _: "",
    ),
    of_case(
        classed("group", GROUPS, lambda case: case.geometry.group),
        "geometry.q_heads geometry.kv_heads",
        size("grouped heads", but("1"), removals.no_groups),
        printed=_heads_in_words,
    ),
    of_case(
        classed("latent", LATENTS, lambda case: case.geometry.latent),
        "geometry.latent",
        supported=lambda can: LATENTS.names[1:] if can.latent else ("none",),
        lack="a backend has latents or not",
        refusal=_refused_latent,
        printed=_latent_in_words,
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
        refusal=_refused_head_dims,
        printed=_head_dims_in_words,
    ),
    of_case(
        single("V dim", VALUE_DIMS.names, _value_dim),
        "geometry.head_dim_vo",
        size("V dim", but("as K's"), removals.equal_head_dims),
        supported=_value_dims,
        lack="the backend does not have such head dims of V",
        refusal=_refused_value_dim,
        printed=lambda _: "",
        optional=("other head dims of V", lambda can: can.unequal_head_dims or can.latent),
    ),
    of_case(
        classed("page size", PAGE_SIZES, lambda case: case.geometry.page_size),
        "geometry.page_size",
        supported=lambda can: map(PAGE_SIZES.of, can.page_sizes),
        lack="the backend does not have pages of this size",
        refusal=lambda can, case: (
            None if case.geometry.page_size in can.page_sizes else f"page size {case.geometry.page_size}"
        ),
        # Neither layout is the plain one: servers have HND, functions NHD.
        printed=lambda case: f"pages of {case.geometry.page_size} ({case.geometry.kv_layout})",
    ),
    of_case(
        single("dtype", _DTYPES, lambda case: case.geometry.dtype),
        "geometry.dtype",
        removable("16 bits", but(DType.FLOAT32), removals.in_fp32, usual=True),
        **offers(
            lambda can: can.dtypes,
            "the backend does not take queries of this dtype",
            lambda case: case.geometry.dtype,
            "{} queries",
        ),
        printed=_dtypes_in_words,
    ),
    of_case(
        classed("KV dtype", KV_DTYPES, lambda case: case.geometry.kv_dtype),
        "geometry.kv_dtype",
        removable("fp8 KV", but("that of the queries"), removals.no_fp8),
        filed={"fp8 kv": only("float8_e4m3")},
        formerly={"fp8 kv": "KV dtype=float8_e4m3"},
        supported=_kv_dtypes,
        lack="the backend does not have such a KV cache",
        refusal=_refused_kv_dtype,
        printed=lambda _: "",
        optional=("fp8 caches", lambda can: can.fp8_kv or can.nvfp4_kv),
    ),
    of_case(
        single("layout", KvLayout, lambda case: case.geometry.kv_layout),
        "geometry.kv_layout",
        removable("NHD layout", but(KvLayout.HND), geometry_with(kv_layout=KvLayout.HND)),
        **offers(
            lambda can: can.layouts,
            "the backend does not have this KV layout",
            lambda case: case.geometry.kv_layout,
            "KV layout {}",
        ),
        printed=lambda _: "",
    ),
    of_case(
        flag("sinks", lambda case: case.geometry.sinks),
        "geometry.sinks",
        removable("sinks", but("none"), removals.no_sinks),
        filed={"sinks": but("none")},
        supported=lambda can: ("none", "yes") if can.sinks else ("none",),
        lack="the backend does not have sinks",
        refusal=lambda can, case: "attention sinks" if case.geometry.sinks and not can.sinks else None,
        printed=lambda case: "sinks" if case.geometry.sinks else "",
        optional=("sinks", lambda can: None if can.writes else can.sinks),
    ),
    of_case(
        flag("soft cap", lambda case: case.geometry.soft_cap > 0),
        "geometry.soft_cap",
        removable("soft cap", but("none"), geometry_with(soft_cap=0.0)),
        filed={"soft cap": but("none")},
        supported=lambda can: ("none", "yes") if can.soft_cap else ("none",),
        lack="the backend does not have soft caps",
        refusal=lambda can, case: "a logit soft cap" if case.geometry.soft_cap and not can.soft_cap else None,
        printed=lambda case: f"soft cap {case.geometry.soft_cap:g}" if case.geometry.soft_cap else "",
        optional=("soft caps", lambda can: None if can.writes else can.soft_cap),
    ),
    line="geometry",
)


_WINDOWS = ("none", "a query's own key", "cuts keys off", "longer than all keys")


def _side(keys: int, alone: str, *, cut: bool) -> str:
    """Return the value of one side of a window: `alone` if that has no keys; `cut` says whether it cuts keys off."""
    if keys <= 0:
        return alone if keys == 0 else "none"
    return "cuts keys off" if cut else "longer than all keys"


def _window(moment: Moment) -> str:
    left = moment.case.geometry.window_left
    return _side(left, _WINDOWS[1], cut=any(kv_len > left + 1 for _, kv_len in moment.asking))


def _window_in_words(case: Case) -> str:
    left = case.geometry.window_left
    return f"window of {left:,} key{'s' * (left != 1)} to the left" if left >= 0 else ""


def _mask(moment: Moment) -> str:
    return moment.case.mask if applies(moment.case, moment.step) else Mask.CAUSAL


def _refused_mask(can: "Capability", case: Case) -> str | None:
    if case.mask not in can.masks:
        return f"mask {case.mask}"
    windowed = case.geometry.window_left >= 0 > case.geometry.window_right
    return f"a sliding window with mask {case.mask}" if windowed and case.mask not in can.windowed_masks else None


_RIGHT_WINDOWS = ("none", "ends at a query's own key", "cuts keys off", "longer than all keys")


def _right_window(moment: Moment) -> str:
    right = moment.case.geometry.window_right
    cut = any(q_len > right + 1 and kv_len for q_len, kv_len in moment.asking)
    return _side(right, _RIGHT_WINDOWS[1], cut=cut)


def _impossible_right_window(case: Case) -> Violation | None:
    geometry = case.geometry
    if geometry.window_right < 0 or (geometry.window_left >= 0 and case.mask is Mask.FULL):
        return None
    return "geometry.window_right", geometry.window_right, "must be -1 without a window and a full mask"


def _draw_right_windows(can: "Capability", case: Case) -> tuple[Case, ...]:
    """Return a case with a window and a full mask at ends of the window: near a query's own key, and after all keys."""
    if not can.right_windows or case.geometry.window_left < 0 or case.mask is not Mask.FULL:
        return (case,)
    open_ended = (-1,) * 4 if Mask.FULL in can.windowed_masks else ()
    rights = (*open_ended, 0, 1, 2, 3, 7, 16, case.geometry.page_size, 64, 8192)
    return tuple(replace(case, geometry=replace(case.geometry, window_right=right)) for right in rights)


_CHUNKS = ("none", "longer than all keys", "cuts keys off")


def _chunk(moment: Moment) -> str:
    chunk = moment.case.geometry.attention_chunk
    return _CHUNKS[1 + any(kv_len > chunk for _, kv_len in moment.asking)] if chunk else "none"


def _impossible_chunk(case: Case) -> Violation | None:
    geometry = case.geometry
    if not 0 <= geometry.attention_chunk <= MAX_CHUNK:
        return "geometry.attention_chunk", geometry.attention_chunk, f"must be at least 0 and at most {MAX_CHUNK}"
    alone = geometry.window_left < 0 and geometry.latent is None and case.mask is Mask.CAUSAL
    if alone or not geometry.attention_chunk:
        return None
    return "geometry.attention_chunk", geometry.attention_chunk, "must be 0 with a window, latents, or a mask"


def _draw_chunks(can: "Capability", case: Case) -> tuple[Case, ...]:
    """Return a causal case without a window at most chunks: small ones, around pages, and longer than most KVs."""
    if not can.attention_chunks or case.geometry.window_left >= 0 or case.mask is not Mask.CAUSAL:
        return (case,)
    size = case.geometry.page_size
    chunks = (0,) * 10 + (1, 2, 3, 7, 16, size, 4 * size, 64, 8192)
    return tuple(replace(case, geometry=replace(case.geometry, attention_chunk=chunk)) for chunk in chunks)


_TIMES_CAUSAL = 3
# Few cases have a step that verifies drafts.
_TIMES_TREE = 4


def beside_windows(can: "Capability", mask: Mask) -> bool:
    """Return whether a backend has windows beside a mask."""
    return mask in can.windowed_masks or (mask is Mask.FULL and can.right_windows)


def _draw_masks(can: "Capability", case: Case) -> tuple[Case, ...]:
    """Return a case with the masks that a backend supports. Trees are only drawn for cases with a verify step."""
    trees = any(step.mode is Mode.TARGET_VERIFY for step in case.steps)
    windowed = case.geometry.window_left >= 0
    times = {Mask.CAUSAL: _TIMES_CAUSAL, Mask.TREE: _TIMES_TREE}
    return tuple(
        each
        for mask in Mask
        if mask in can.masks and (trees or mask is not Mask.TREE) and (not windowed or beside_windows(can, mask))
        for each in (replace(case, mask=mask),) * times.get(mask, 1)
    )


_FORMER_MASKS = {
    "full mask": Mask.FULL,
    "tree": Mask.TREE,
    "custom mask": Mask.CUSTOM,
    "mask with empty rows": Mask.EMPTY_ROWS,
}

SEEN_KEYS = grouped(
    "visible keys",
    of_steps(
        single("window", _WINDOWS, _window),
        "geometry.window_left",
        removable("window", but("none"), removals.without_window),
        removable("keys outside of the window", only("cuts keys off"), removals.no_window),
        removable("window of one key", only("a query's own key"), removals.wider_window),
        filed={"window": but("none")},
        supported=lambda can: _WINDOWS if can.windows else ("none",),
        lack="the backend does not have windows",
        refusal=lambda can, case: "a sliding window" if case.geometry.window_left >= 0 and not can.windows else None,
        printed=_window_in_words,
        line="geometry",
        optional=("windows", lambda can: None if can.writes else can.windows),
    ),
    of_steps(
        single("mask", Mask, _mask),
        "mask",
        removable("mask", but(Mask.CAUSAL), removals.causal),
        removable("mask with holes", but(Mask.CAUSAL, Mask.FULL), case_with(mask=Mask.FULL)),
        removable("rows that a mask hides all keys from", only(Mask.EMPTY_ROWS), case_with(mask=Mask.CUSTOM)),
        filed={word: only(mask) for word, mask in _FORMER_MASKS.items()},
        formerly={word: f"mask={mask}" for word, mask in _FORMER_MASKS.items()},
        supported=lambda can: can.masks,
        lack="the backend does not have this mask",
        refusal=_refused_mask,
        rule=lambda case: (
            ("mask", case.mask.value, "must be causal with latents")
            if case.mask is not Mask.CAUSAL and case.geometry.latent is not None
            else None
        ),
        draws=_draw_masks,
        line="values",
        optional=(
            "masks other than causal",
            lambda can: None if can.writes or can.latent else can.masks != (Mask.CAUSAL,),
        ),
    ),
    of_steps(
        single("right window", _RIGHT_WINDOWS, _right_window),
        "geometry.window_right",
        removable("right window", but("none"), geometry_with(window_right=-1)),
        removable(
            "keys after the window", only("ends at a query's own key", "cuts keys off"), removals.no_right_window
        ),
        supported=lambda can: _RIGHT_WINDOWS if can.right_windows else ("none",),
        lack="the backend does not have windows that end after a query's own key",
        refusal=lambda can, case: (
            "a window to the right" if case.geometry.window_right >= 0 and not can.right_windows else None
        ),
        optional=(
            "windows to the right",
            lambda can: None if can.writes or can.latent or Mask.FULL not in can.masks else can.right_windows,
        ),
        rule=_impossible_right_window,
        draws=_draw_right_windows,
        clashes=(
            ("a window without a beginning has no end", "right window!=none", "window=none"),
            ("a window ends after a query's own key under a full mask", "right window!=none", "mask!=full"),
            ("each of two queries sees the other's key", "right window=cuts keys off", "longest q=1|2"),
            (
                "keys after a query's own are those of later queries",
                "right window=cuts keys off",
                "without keys=all; longest kv=0",
            ),
        ),
        printed=lambda case: (
            f"up to {case.geometry.window_right:,} keys to the right" if case.geometry.window_right >= 0 else ""
        ),
        line="geometry",
    ),
    of_steps(
        single("attention chunk", _CHUNKS, _chunk),
        "geometry.attention_chunk",
        removable("attention chunk", but("none"), geometry_with(attention_chunk=0)),
        removable("keys outside of the chunk", only("cuts keys off"), geometry_with(attention_chunk=MAX_CHUNK)),
        filed={"attention chunk": but("none")},
        supported=lambda can: _CHUNKS if can.attention_chunks else ("none",),
        lack="the backend does not have chunks of attention",
        refusal=lambda can, case: (
            "attention within chunks" if case.geometry.attention_chunk and not can.attention_chunks else None
        ),
        optional=("attention within chunks", lambda can: None if can.writes or can.latent else can.attention_chunks),
        rule=_impossible_chunk,
        draws=_draw_chunks,
        clashes=(
            ("a layer has chunks or a window", "attention chunk!=none", "window!=none"),
            ("attention within chunks is causal", "attention chunk!=none", "mask!=causal"),
            (
                "a chunk cuts off keys if any",
                "attention chunk=cuts keys off",
                "without keys=all; longest kv=0",
            ),
        ),
        printed=lambda case: (
            f"chunks of {case.geometry.attention_chunk:,} keys" if case.geometry.attention_chunk else ""
        ),
        line="geometry",
    ),
)
