"""Geometries that modules are compiled for: out of buckets, and the layers of served models that lie in one."""

from collections.abc import Iterator

from hypothesis.strategies import DrawFn
from msgspec.structs import replace

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.geometry import Geometry
from attnfuzz.strategies.choices import Choice, on
from attnfuzz.strategies.coverage.classes import DRAFTS
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.models import LAYERS
from attnfuzz.strategies.shown import (
    shown_by_dtypes,
    shown_by_head_dim,
    shown_by_heads,
    shown_by_latent,
    shown_by_page_size,
    shown_by_soft_cap,
    shown_by_value_dim,
    shown_by_window,
)


class CompiledGeometries:
    """Geometries that some bucket covers: a bucket is drawn first, each as often as the others."""

    def __init__(self, buckets: tuple[Bucket, ...]) -> None:
        """Sort out what the buckets have."""
        self._buckets = Choice(tuple(map(_Compiled, buckets)), lambda each: each.shown)

    def draw(self, draw: DrawFn, lean: Lean) -> tuple[Geometry, Bucket]:
        """Draw a bucket; then a layer of a served model in it, in a third of the cases if there is one, or any of it.

        The bucket comes with it: another that covers the geometry may be of other modes, and other numbers of drafts.
        """
        compiled = draw(self._buckets.under(lean))
        return compiled.draw(draw, lean), compiled.bucket


class _Compiled:
    """A bucket, and the parts of it that are layers of served models."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        served = tuple(map(_Free, _served(bucket)))
        free = _Free(bucket)
        self._parts = Choice((free,) * 2 * max(1, len(served)) + served, lambda each: each.shown)
        self.shown = free.shown

    def draw(self, draw: DrawFn, lean: Lean) -> Geometry:
        return draw(self._parts.under(lean)).draw(draw, lean)


class _Free:
    """The geometries of a bucket, or of a part of one: every combination of what it has."""

    def __init__(self, bucket: Bucket) -> None:
        self._simplest = bucket.simplest
        self._heads = Choice(bucket.heads, shown_by_heads)
        self._pages = Choice(bucket.page_sizes, shown_by_page_size)
        self._layouts = Choice(bucket.layouts, on("layout"))
        self._windows = Choice(bucket.windows, shown_by_window)
        self._sinks = Choice(bucket.sinks, on("sinks", lambda present: "yes" if present else "none"))
        self._soft_caps = Choice(bucket.soft_caps, shown_by_soft_cap)
        parts = (self._heads, self._pages, self._layouts, self._windows, self._sinks, self._soft_caps)
        self.shown = frozenset(
            (
                *shown_by_dtypes((bucket.dtype, bucket.kv_dtype)),
                *shown_by_head_dim(bucket.head_dim_qk),
                *shown_by_value_dim(bucket.head_dim_qk, bucket.head_dim_vo),
                *shown_by_latent(bucket.latent),
                *(f"drafts={DRAFTS.of(stride)}" for stride in bucket.strides),
            )
        ).union(*(part.shown for part in parts))

    def draw(self, draw: DrawFn, lean: Lean) -> Geometry:
        q_heads, kv_heads = draw(self._heads.under(lean))
        return replace(
            self._simplest,
            q_heads=q_heads,
            kv_heads=kv_heads,
            page_size=draw(self._pages.under(lean)),
            kv_layout=draw(self._layouts.under(lean)),
            window_left=draw(self._windows.under(lean)),
            sinks=draw(self._sinks.under(lean)),
            soft_cap=draw(self._soft_caps.under(lean)),
        )


def _served(bucket: Bucket) -> Iterator[Bucket]:
    """The parts of a bucket that are layers of served models."""
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
            yield replace(
                bucket,
                heads=heads,
                page_sizes=pages,
                windows=(layer.window_left,),
                sinks=(layer.sinks,),
                soft_caps=(0.0,),
            )
