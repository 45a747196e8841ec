"""The options that a capability allows, simple ones first. Repeated options are drawn more often."""

from functools import cache
from itertools import product

from msgspec.structs import replace

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import NOT_DECODED, Granularity, Mode, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edges import Edge
from attnfuzz.reference.geometry import Latent

# Small dims are repeated: they are the cheapest, and run the same code.
_HEAD_DIMS = (8, 8, 16, 16, 16, 24, 32, 32, 40, 64, 64, 72, 80, 96, 128, 128, 192, 256, 512)
_GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
_KV_HEADS = (1, 2, 3, 4, 8)
_MOST_FREE_HEADS = 16
# More than 16: models have groups of 20, 24, 48 and 71. Kernels work in tiles of 16 heads or more, of which some end
# within a group or reach into the next one.
_WIDE_HEADS = ((17, 1), (20, 1), (24, 1), (24, 2), (34, 2), (40, 2), (48, 1), (48, 2), (71, 1))
# Draft tokens: 2 to 8 in servers, rarely 16.
_DRAFTS = (2, 3, 4, 5, 6, 7, 8) * 4 + (16,)
_LATENT_HEADS = (1, 2, 3, 4, 5, 8, 10, 16, 17, 24)
# Small ranks are repeated: they are cheap, and those of served models are drawn with their layers.
_RANKS = (*(16, 32, 64, 128) * 2, 192, 256, 320, 384, 512)
_ROPES, _NOPES, _VOS = (8, 16, 64), (8, 16, 64, 128), (8, 16, 64, 128)


def may_idle(can: Capability) -> bool:
    """Return whether a step without requests may be drawn."""
    return any(rule.edge is Edge.IDLE for rule in can.edges)


def dtype_pairs(can: Capability) -> tuple[tuple[DType, DType], ...]:
    """Return dtypes of queries and of the KV cache. The default, bfloat16, comes first."""
    dtypes = sorted(can.dtypes, key=lambda dtype: dtype is not DType.BFLOAT16)
    same = tuple((dtype, dtype) for dtype in dtypes)
    if can.nvfp4_kv:
        return tuple((dtype, DType.FLOAT4_E2M1) for dtype in dtypes)
    if not can.fp8_kv:
        return same
    fp8 = tuple((dtype, DType.FLOAT8_E4M3) for dtype in dtypes)
    if Granularity.TENSOR not in can.granularities:
        return fp8
    # A backend with several granularities is meant for quantised caches.
    return same * 2 + fp8 if len(can.granularities) == 1 else same + fp8 * len(can.granularities)


def heads(can: Capability) -> tuple[tuple[int, int], ...]:
    """Return pairs (query heads, KV heads), few heads first."""
    if can.latent:
        return tuple((heads, 1) for heads in _LATENT_HEADS)
    pairs = ((group * heads, heads) for group, heads in product(_GROUPS, _KV_HEADS))
    few = sorted(pair for pair in pairs if pair[0] <= _MOST_FREE_HEADS)
    return (*few, *few, *_WIDE_HEADS)


def head_dims(can: Capability) -> tuple[int, ...]:
    """Return head dims of K for a backend without latents."""
    if can.buckets:
        return tuple(sorted({bucket.head_dim_qk for bucket in can.buckets}))
    return tuple(sorted(can.head_dims)) or tuple(dim for dim in _HEAD_DIMS if dim <= can.max_head_dim)


def latents(can: Capability) -> tuple[Latent | None, ...]:
    """Return latents whose head dims are supported, small ones first, or only None for a backend without latents."""
    if not can.latent:
        return (None,)
    if can.buckets:
        return tuple(dict.fromkeys(bucket.latent for bucket in can.buckets))
    dims = sorted(product(_RANKS, _ROPES, _NOPES, _VOS), key=sum)
    return tuple(
        Latent(rank=rank, rope=rope, nope=nope, vo=vo)
        for rank, rope, nope, vo in dims
        if max(rank + rope, nope + rope, vo) <= can.max_head_dim
    )


def drafts(bucket: Bucket | None, rows: int) -> tuple[int, ...]:
    """Return the numbers of draft tokens for which a bucket has modules, in steps of at most `rows`."""
    some = bucket.strides if bucket and bucket.strides else _DRAFTS
    return tuple(number for number in some if number <= rows)


def granularities(can: Capability, family: ValueFamily) -> tuple[Granularity, ...]:
    """Return granularities of scales for these values: a writer computes none from numbers that are not finite."""
    static = tuple(each for each in can.granularities if not each.computed)
    return static if family is ValueFamily.EXTREME else can.granularities


@cache
def on_a_server(can: Capability, stride: int) -> Capability:
    """Restrict `can` to the modes of a server with `stride` draft tokens. Of few, the draft model decodes none."""
    if stride > NOT_DECODED or Mode.DRAFT_DECODE not in can.modes:
        return can
    modes, graph_modes = (
        tuple(mode for mode in some if mode is not Mode.DRAFT_DECODE) for some in (can.modes, can.graph_modes)
    )
    return replace(can, modes=modes, graph_modes=graph_modes)


@cache
def within(can: Capability, bucket: Bucket | None) -> Capability:
    """Restrict `can` to the modes of one of its buckets."""
    if bucket is None or not bucket.modes:
        return can
    modes, graph_modes = (tuple(mode for mode in some if mode in bucket.modes) for some in (can.modes, can.graph_modes))
    return replace(can, modes=modes, graph_modes=graph_modes)
