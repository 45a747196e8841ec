"""Drawing geometries: layers of served models, free ones with small and odd head dims, or those of compiled modules."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features.classes import (
    DRAFTS,
    GROUPS,
    HEAD_DIMS,
    KV_DTYPES,
    KV_HEADS,
    LATENTS,
    PAGE_SIZES,
    VALUE_DIMS,
)
from attnfuzz.reference.geometry import Geometry, KvLayout, Latent
from attnfuzz.strategies.choices import Choice, WeightedFlag, choice, on
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.supported import dtype_pairs, head_dims, heads, latents

# No window, then keys before a query's own: 0, 1, around the page sizes, and the windows of GPT-OSS and Gemma 3.
_WINDOWS = (*(-1,) * 24, 0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 63, 64, 127, 1023)
# No soft cap, those of Gemma 2, and some that saturate, so that every logit is one of two numbers.
_SOFT_CAPS = (*(0.0,) * 5, 50.0, 30.0, 5.0, 1.0, 0.1)
# A longer window usually covers all keys.
_LONG_WINDOW = 31
_NEVER = WeightedFlag(1, 0, ())


@dataclass(frozen=True)
class LayerSpec:
    """One kind of layer of a model.

    `heads` are the (query heads, KV heads) of a rank under common tensor and data parallel sizes, `pages` the common
    page sizes. `window_left` and `sinks` are as in Geometry. Latent layers take their head dims from `latent`.
    """

    model: str
    heads: tuple[tuple[int, int], ...]
    head_dim: int
    pages: tuple[int, ...]
    window_left: int = -1
    sinks: bool = False
    latent: Latent | None = None


_DEEPSEEK = Latent(rank=512, rope=64, nope=128, vo=128)

# From the models' configurations, divided by tensor parallel sizes of 4, 8 and 16 or kept whole for data parallelism.
LAYERS = (
    LayerSpec("Llama-3.1 8B and 70B", ((8, 1), (4, 1), (32, 8), (64, 8)), 128, (16, 32, 64)),
    LayerSpec("Qwen3.5-397B-A17B", ((4, 1), (8, 1), (32, 2)), 256, (64,)),
    LayerSpec("GPT-OSS, full layers", ((8, 1), (64, 8)), 64, (64,), sinks=True),
    LayerSpec("GPT-OSS, window layers", ((8, 1), (64, 8)), 64, (64,), window_left=127, sinks=True),
    LayerSpec("Gemma 3, window layers", ((8, 4), (16, 8)), 256, (16, 32, 64), window_left=1023),
    LayerSpec("Gemma 4, full layers", ((8, 4),), 512, (16, 32, 64)),
    LayerSpec("DeepSeek-V3", ((8, 1), (16, 1), (128, 1)), 576, (32, 64), latent=_DEEPSEEK),
    LayerSpec("Kimi-K2", ((8, 1), (64, 1)), 576, (32, 64), latent=_DEEPSEEK),
    LayerSpec("GLM with latents", ((10, 1), (20, 1)), 576, (32, 64), latent=_DEEPSEEK),
)

_shown_by_page_size = on("page size", PAGE_SIZES.of)
_shown_by_head_dim = on("head dim", HEAD_DIMS.of)


def _shown_by_dtypes(dtypes: tuple[DType, DType]) -> tuple[str, ...]:
    queries, cache = dtypes
    return f"dtype={queries}", f"KV dtype={KV_DTYPES.of(cache)}"


def _shown_by_heads(pair: tuple[int, int]) -> tuple[str, ...]:
    q_heads, kv_heads = pair
    return f"KV heads={KV_HEADS.of(kv_heads)}", f"group={GROUPS.of(q_heads // kv_heads)}"


def _shown_by_latent(latent: Latent | None) -> tuple[str, ...]:
    if latent is None:
        return ()
    return f"latent={LATENTS.of(latent)}", *_shown_by_head_dim(latent.rank + latent.rope)


def _shown_by_window(left: int) -> tuple[str, ...]:
    """Return the feature of a window of `left` keys before a query's own, for typical numbers of keys."""
    if left <= 0:
        return ("window=none" if left else "window=a query's own key",)
    return ("window=longer than all keys",) if left >= _LONG_WINDOW else ("window=cuts keys off",)


def _shown_by_soft_cap(cap: float) -> tuple[str, ...]:
    return ("soft cap=yes",) if cap else ()


@dataclass(frozen=True, eq=False)
class _Part:
    """The geometries of all combinations of these options.

    Without latents, the head dim of V is drawn separately if it should `differ` from that of K. `drafts` are the
    features of compiled numbers of draft tokens, if they are limited.
    """

    latents: Choice[Latent | None]
    head_dims: Choice[int]
    differ: Choice[bool]
    value_dims: SearchStrategy[int]
    heads: Choice[tuple[int, int]]
    dtypes: Choice[tuple[DType, DType]]
    pages: Choice[int]
    layouts: Choice[KvLayout]
    windows: Choice[int]
    sinks: Choice[bool]
    soft_caps: Choice[float]
    drafts: tuple[str, ...] = ()

    @cached_property
    def shown(self) -> frozenset[str]:
        """The features that these geometries can show."""
        options = (self.latents, self.head_dims, self.differ, self.heads, self.dtypes, self.pages, self.layouts)
        others = (self.windows, self.sinks, self.soft_caps)
        return frozenset(self.drafts).union(*(each.shown for each in (*options, *others)))

    def draw(self, draw: DrawFn, lean: Lean) -> Geometry:
        """Draw a geometry."""
        latent = draw(self.latents.under(lean))
        if latent is not None:
            head_dim_qk, head_dim_vo = latent.rank + latent.rope, latent.rank
        else:
            head_dim_qk = draw(self.head_dims.under(lean))
            head_dim_vo = draw(self.value_dims) if draw(self.differ.under(lean)) else head_dim_qk
        q_heads, kv_heads = draw(self.heads.under(lean))
        dtype, kv_dtype = draw(self.dtypes.under(lean))
        return Geometry(
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim_qk=head_dim_qk,
            head_dim_vo=head_dim_vo,
            page_size=draw(self.pages.under(lean)),
            dtype=dtype,
            kv_dtype=kv_dtype,
            kv_layout=draw(self.layouts.under(lean)),
            window_left=draw(self.windows.under(lean)),
            sinks=draw(self.sinks.under(lean)),
            soft_cap=draw(self.soft_caps.under(lean)),
            latent=latent,
        )


class _Group:
    """The geometries of a bucket, or of a backend without buckets: free ones, and layers of served models."""

    def __init__(self, bucket: Bucket | None, free: _Part, served: tuple[_Part, ...]) -> None:
        self.bucket = bucket
        self.shown = free.shown
        # Two of three draws are no layer of a served model.
        self.parts = Choice((free,) * 2 * max(1, len(served)) + served, lambda part: part.shown)


class Geometries:
    """Geometries that a capability supports, with options computed once for all cases."""

    def __init__(self, can: Capability) -> None:
        """Compute the options of `can`."""
        groups = tuple(map(_group_of_bucket, can.buckets)) or (_group_of_all(can),)
        self._groups = Choice(groups, lambda group: group.shown)

    def draw(self, draw: DrawFn, lean: Lean) -> tuple[Geometry, Bucket | None]:
        """Draw a bucket if there are any, then a layer of a served model (a third of the cases) or a free geometry.

        Returns the bucket too: other buckets with the geometry may have other modes and numbers of drafts.
        """
        group = draw(self._groups.under(lean))
        return draw(group.parts.under(lean)).draw(draw, lean), group.bucket


def _group_of_all(can: Capability) -> _Group:
    free = _Part(
        latents=Choice(latents(can), _shown_by_latent),
        head_dims=Choice(head_dims(can), _shown_by_head_dim),
        differ=WeightedFlag(1, int(can.unequal_head_dims), ("V dim=smaller", "V dim=larger")),
        value_dims=choice(head_dims(can)),
        heads=Choice(heads(can), _shown_by_heads),
        dtypes=Choice(dtype_pairs(can), _shown_by_dtypes),
        pages=Choice(tuple(sorted(can.page_sizes)), _shown_by_page_size),
        layouts=Choice(can.layouts, on("layout")),
        windows=Choice(_WINDOWS if can.windows else (-1,), _shown_by_window),
        sinks=WeightedFlag(2, 1, ("sinks=yes",)) if can.sinks else _NEVER,
        soft_caps=Choice(_SOFT_CAPS if can.soft_cap else (0.0,), _shown_by_soft_cap),
    )
    return _Group(None, free, tuple(_layer(layer, free, can) for layer in LAYERS if _covers(can, layer)))


def _layer(layer: LayerSpec, free: _Part, can: Capability) -> _Part:
    """Return a layer of a served model, with the free geometries' dtypes and layouts and its supported page sizes."""
    usual = tuple(size for size in layer.pages if size in can.page_sizes)
    return replace(
        free,
        latents=Choice((layer.latent,), _shown_by_latent),
        head_dims=Choice((layer.head_dim,), _shown_by_head_dim),
        differ=_NEVER,
        heads=Choice(layer.heads, _shown_by_heads),
        pages=Choice(usual, _shown_by_page_size) if usual else free.pages,
        windows=Choice((layer.window_left,), _shown_by_window),
        sinks=WeightedFlag(0, 1, ("sinks=yes",)) if layer.sinks else _NEVER,
        soft_caps=Choice((0.0,), _shown_by_soft_cap),
    )


def _covers(can: Capability, layer: LayerSpec) -> bool:
    return (
        (layer.latent is not None) == can.latent
        and (layer.head_dim in can.head_dims if can.head_dims else layer.head_dim <= can.max_head_dim)
        and (layer.window_left < 0 or can.windows)
        and (can.sinks or not layer.sinks)
    )


def _group_of_bucket(bucket: Bucket) -> _Group:
    return _Group(bucket, _compiled(bucket), tuple(map(_compiled, _served(bucket))))


def _compiled(bucket: Bucket) -> _Part:
    value_dim = f"V dim={VALUE_DIMS.of(bucket.head_dim_qk, bucket.head_dim_vo)}"
    return _Part(
        latents=Choice((bucket.latent,), _shown_by_latent),
        head_dims=Choice((bucket.head_dim_qk,), _shown_by_head_dim),
        differ=WeightedFlag(0, 1, (value_dim,)),
        value_dims=choice((bucket.head_dim_vo,)),
        heads=Choice(bucket.heads, _shown_by_heads),
        dtypes=Choice(((bucket.dtype, bucket.kv_dtype),), _shown_by_dtypes),
        pages=Choice(bucket.page_sizes, _shown_by_page_size),
        layouts=Choice(bucket.layouts, on("layout")),
        windows=Choice(bucket.windows, _shown_by_window),
        sinks=Choice(bucket.sinks, on("sinks", lambda present: "yes" if present else "none")),
        soft_caps=Choice(bucket.soft_caps, _shown_by_soft_cap),
        drafts=tuple(f"drafts={DRAFTS.of(stride)}" for stride in bucket.strides),
    )


def _served(bucket: Bucket) -> Iterator[Bucket]:
    """Yield the parts of a bucket that are layers of served models."""
    for layer in LAYERS:
        heads = tuple(pair for pair in bucket.heads if pair in layer.heads)
        pages = tuple(size for size in bucket.page_sizes if size in layer.pages)
        if (
            heads
            and pages
            and (layer.head_dim, layer.latent) == (bucket.head_dim_qk, bucket.latent)
            and (bucket.latent or bucket.head_dim_vo == layer.head_dim)
            and layer.window_left in bucket.windows
            and layer.sinks in bucket.sinks
            and 0.0 in bucket.soft_caps
        ):
            yield msgspec.structs.replace(
                bucket,
                heads=heads,
                page_sizes=pages,
                windows=(layer.window_left,),
                sinks=(layer.sinks,),
                soft_caps=(0.0,),
            )
