"""Geometries: layers of served models, and free ones with small and odd head dims."""

from typing import NamedTuple

from hypothesis.strategies import DrawFn

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.geometry import Geometry
from attnfuzz.strategies.choices import Choice, WeightedFlag, choice, on
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.models import LAYERS, LayerSpec
from attnfuzz.strategies.shown import (
    shown_by_dtypes,
    shown_by_head_dim,
    shown_by_heads,
    shown_by_latent,
    shown_by_page_size,
    shown_by_soft_cap,
    shown_by_window,
)
from attnfuzz.strategies.supported import dtype_pairs, head_dims, heads, latents

# None, then keys before a query's own: none, one, around the page sizes, and the windows of GPT-OSS and Gemma 3.
_WINDOWS = (*(-1,) * 24, 0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 63, 64, 127, 1023)
_SOFT_CAPS = (0.0, 0.0, 0.0, 50.0, 30.0, 5.0)


class _Served(NamedTuple):
    layer: LayerSpec
    heads: Choice[tuple[int, int]]
    pages: Choice[int]


class Geometries:
    """Geometries that a capability covers. Its options are sorted out here, once for all cases."""

    def __init__(self, can: Capability) -> None:
        """Sort out what `can` covers."""
        self._dtypes = Choice(dtype_pairs(can), shown_by_dtypes)
        self._layouts = Choice(can.layouts, on("layout"))
        self._pages = Choice(tuple(sorted(can.page_sizes)), shown_by_page_size)
        self._heads = Choice(heads(can), shown_by_heads)
        self._head_dims = Choice(head_dims(can), shown_by_head_dim)
        self._value_dims = choice(head_dims(can))
        self._differ = WeightedFlag(1, int(can.unequal_head_dims), ("V dim=smaller", "V dim=larger"))
        self._latents = Choice(latents(can), shown_by_latent)
        self._windows = Choice(_WINDOWS if can.windows else (-1,), shown_by_window)
        self._sinks = WeightedFlag(2, 1, ("sinks=yes",)) if can.sinks else WeightedFlag(1, 0, ())
        self._soft_caps = Choice(_SOFT_CAPS if can.soft_cap else (0.0,), shown_by_soft_cap)
        served = tuple(
            _Served(
                layer,
                Choice(layer.heads, shown_by_heads),
                Choice(_common(layer.pages, can.page_sizes), shown_by_page_size),
            )
            for layer in LAYERS
            if _covers(can, layer)
        )
        # Two times in three no layer of a model, but a free geometry.
        self._layers = Choice((None,) * 2 * max(1, len(served)) + served, self._shown)

    def draw(self, draw: DrawFn, lean: Lean) -> tuple[Geometry, None]:
        """Draw a layer of a served model in a third of the cases, else a free geometry; of no bucket."""
        served = draw(self._layers.under(lean))
        return (self._draw_served(draw, served, lean) if served else self._draw_free(draw, lean)), None

    def _draw_served(self, draw: DrawFn, served: _Served, lean: Lean) -> Geometry:
        layer, heads, pages = served
        q_heads, kv_heads = draw(heads.under(lean))
        dtype, kv_dtype = draw(self._dtypes.under(lean))
        return Geometry(
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim_qk=layer.head_dim,
            head_dim_vo=layer.latent.rank if layer.latent else layer.head_dim,
            page_size=draw(pages.under(lean)),
            dtype=dtype,
            kv_dtype=kv_dtype,
            kv_layout=draw(self._layouts.under(lean)),
            window_left=layer.window_left,
            sinks=layer.sinks,
            latent=layer.latent,
        )

    def _draw_free(self, draw: DrawFn, lean: Lean) -> Geometry:
        latent = draw(self._latents.under(lean))
        if latent is not None:
            head_dim_qk, head_dim_vo = latent.rank + latent.rope, latent.rank
        else:
            head_dim_qk = draw(self._head_dims.under(lean))
            head_dim_vo = draw(self._value_dims) if draw(self._differ.under(lean)) else head_dim_qk
        q_heads, kv_heads = draw(self._heads.under(lean))
        dtype, kv_dtype = draw(self._dtypes.under(lean))
        return Geometry(
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim_qk=head_dim_qk,
            head_dim_vo=head_dim_vo,
            page_size=draw(self._pages.under(lean)),
            dtype=dtype,
            kv_dtype=kv_dtype,
            kv_layout=draw(self._layouts.under(lean)),
            window_left=draw(self._windows.under(lean)),
            sinks=draw(self._sinks.under(lean)),
            soft_cap=draw(self._soft_caps.under(lean)),
            latent=latent,
        )

    def _shown(self, served: _Served | None) -> frozenset[str]:
        """What the geometries of a served layer, or the free ones, can show."""
        if served is None:
            free = (
                self._heads,
                self._pages,
                self._head_dims,
                self._latents,
                self._windows,
                self._sinks,
                self._soft_caps,
            )
            return self._differ.shown.union(*(each.shown for each in free))
        layer = served.layer
        dims = shown_by_latent(layer.latent) if layer.latent else shown_by_head_dim(layer.head_dim)
        sinks = ("sinks=yes",) if layer.sinks else ()
        return served.heads.shown.union(served.pages.shown, dims, shown_by_window(layer.window_left), sinks)


def _covers(can: Capability, layer: LayerSpec) -> bool:
    return (
        (layer.latent is not None) == can.latent
        and layer.head_dim <= can.max_head_dim
        and (layer.window_left < 0 or can.windows)
        and (can.sinks or not layer.sinks)
    )


def _common(usual: tuple[int, ...], supported: tuple[int, ...]) -> tuple[int, ...]:
    """The usual page sizes that are supported; all that are, if none of the usual ones is."""
    return tuple(size for size in usual if size in supported) or tuple(sorted(supported))
