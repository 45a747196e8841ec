"""Geometries: layers of served models, and free ones with small and odd head dims."""

from itertools import product
from typing import NamedTuple

from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, Latent
from attnfuzz.strategies.choices import choice, odds
from attnfuzz.strategies.models import LAYERS, Layer

# Small dims are repeated, for they are drawn more often: they cost least, and reach the same code.
_HEAD_DIMS = (8, 8, 16, 16, 16, 24, 32, 32, 40, 64, 64, 72, 80, 96, 128, 128, 192, 256, 512)
_GROUPS = (1, 2, 3, 4, 5, 8, 16)
_KV_HEADS = (1, 2, 3, 4, 8)
_MOST_FREE_HEADS = 16
_LATENT_HEADS = (1, 2, 3, 4, 5, 8, 10, 16)
_RANKS, _ROPES, _NOPES, _VOS = (16, 32, 64, 128, 512), (8, 16, 64), (8, 16, 64, 128), (8, 16, 64, 128)
# None, then keys before a query's own: none, one, around the page sizes, and the windows of GPT-OSS and Gemma 3.
_WINDOWS = (*(-1,) * 24, 0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 63, 64, 127, 1023)
_SOFT_CAPS = (0.0, 0.0, 0.0, 50.0, 30.0, 5.0)


class _Served(NamedTuple):
    layer: Layer
    heads: SearchStrategy[tuple[int, int]]
    pages: SearchStrategy[int]


class Geometries:
    """Geometries that a capability covers. Its options are sorted out here, once for all cases."""

    def __init__(self, can: Capability) -> None:
        """Sort out what `can` covers."""
        self._dtypes = choice(_dtype_pairs(can))
        self._layouts = choice(can.layouts)
        self._pages = choice(tuple(sorted(can.page_sizes)))
        self._heads = choice(_heads(can))
        self._head_dims = choice(tuple(dim for dim in _HEAD_DIMS if dim <= can.max_head_dim))
        self._differ = odds(1, 1) if can.unequal_head_dims else odds(1, 0)
        self._latents = choice(_latents(can))
        self._windows = choice(_WINDOWS if can.windows else (-1,))
        self._sinks = odds(2, 1) if can.sinks else odds(1, 0)
        self._soft_caps = choice(_SOFT_CAPS if can.soft_cap else (0.0,))
        served = tuple(
            _Served(layer, choice(layer.heads), choice(_common(layer.pages, can.page_sizes)))
            for layer in LAYERS
            if _covers(can, layer)
        )
        # Two times in three no layer of a model, but a free geometry.
        self._layers = choice((None,) * 2 * max(1, len(served)) + served)

    def draw(self, draw: DrawFn) -> Geometry:
        """Draw a layer of a served model in a third of the cases, else a free geometry."""
        served = draw(self._layers)
        return self._draw_served(draw, served) if served else self._draw_free(draw)

    def _draw_served(self, draw: DrawFn, served: _Served) -> Geometry:
        layer, heads, pages = served
        q_heads, kv_heads = draw(heads)
        dtype, kv_dtype = draw(self._dtypes)
        return Geometry(
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim_qk=layer.head_dim,
            head_dim_vo=layer.latent.rank if layer.latent else layer.head_dim,
            page_size=draw(pages),
            dtype=dtype,
            kv_dtype=kv_dtype,
            kv_layout=draw(self._layouts),
            window_left=layer.window_left,
            sinks=layer.sinks,
            latent=layer.latent,
        )

    def _draw_free(self, draw: DrawFn) -> Geometry:
        latent = draw(self._latents)
        if latent is not None:
            head_dim_qk, head_dim_vo = latent.rank + latent.rope, latent.rank
        else:
            head_dim_qk = draw(self._head_dims)
            head_dim_vo = draw(self._head_dims) if draw(self._differ) else head_dim_qk
        q_heads, kv_heads = draw(self._heads)
        dtype, kv_dtype = draw(self._dtypes)
        return Geometry(
            q_heads=q_heads,
            kv_heads=kv_heads,
            head_dim_qk=head_dim_qk,
            head_dim_vo=head_dim_vo,
            page_size=draw(self._pages),
            dtype=dtype,
            kv_dtype=kv_dtype,
            kv_layout=draw(self._layouts),
            window_left=draw(self._windows),
            sinks=draw(self._sinks),
            soft_cap=draw(self._soft_caps),
            latent=latent,
        )


def _covers(can: Capability, layer: Layer) -> bool:
    return (
        (layer.latent is not None) == can.latent
        and layer.head_dim <= can.max_head_dim
        and (layer.window_left < 0 or can.windows)
        and (can.sinks or not layer.sinks)
    )


def _common(usual: tuple[int, ...], supported: tuple[int, ...]) -> tuple[int, ...]:
    """The usual page sizes that are supported; all that are, if none of the usual ones is."""
    return tuple(size for size in usual if size in supported) or tuple(sorted(supported))


def _dtype_pairs(can: Capability) -> tuple[tuple[DType, DType], ...]:
    """Dtypes of queries and of the KV cache; bfloat16 comes first, being the default."""
    dtypes = sorted(can.dtypes, key=lambda dtype: dtype is not DType.BFLOAT16)
    same = tuple((dtype, dtype) for dtype in dtypes)
    return same * 2 + tuple((dtype, DType.FLOAT8_E4M3) for dtype in dtypes) if can.fp8_kv else same


def _heads(can: Capability) -> tuple[tuple[int, int], ...]:
    """(query heads, KV heads), few heads first."""
    if can.latent:
        return tuple((heads, 1) for heads in _LATENT_HEADS)
    pairs = ((group * heads, heads) for group, heads in product(_GROUPS, _KV_HEADS))
    return tuple(sorted(pair for pair in pairs if pair[0] <= _MOST_FREE_HEADS))


def _latents(can: Capability) -> tuple[Latent | None, ...]:
    """Latents whose head dims are supported, small ones first; none for a backend without latents."""
    if not can.latent:
        return (None,)
    dims = sorted(product(_RANKS, _ROPES, _NOPES, _VOS), key=sum)
    return tuple(
        Latent(rank=rank, rope=rope, nope=nope, vo=vo)
        for rank, rope, nope, vo in dims
        if max(rank + rope, nope + rope, vo) <= can.max_head_dim
    )
