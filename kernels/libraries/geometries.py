"""A few geometries for kernels to which each new one, or each more head, costs seconds."""

from collections.abc import Iterable

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

_WINDOWS = (-1, 0, 3, 16, 127)


def few_geometries(
    dtypes: Iterable[DType],
    *,
    heads: tuple[tuple[int, int], ...] = ((1, 1), (2, 1), (4, 2), (5, 1), (3, 3)),
    head_dims: Iterable[int] = (16, 64, 80),
    page_sizes: tuple[int, ...] = (1, 4, 16, 64),
    windows: bool = False,
    sinks: bool = False,
    soft_caps: bool = False,
) -> tuple[Bucket, ...]:
    """List buckets of each dtype and head dim, in NHD. Sinks are optional to a kernel with `sinks`, and so on."""
    return tuple(
        Bucket(
            dtype=dtype,
            kv_dtype=dtype,
            head_dim_qk=dim,
            head_dim_vo=dim,
            heads=heads,
            page_sizes=page_sizes,
            layouts=(KvLayout.NHD,),
            windows=_WINDOWS if windows else (-1,),
            sinks=(False, True) if sinks else (False,),
            soft_caps=(0.0, 5.0, 30.0) if soft_caps else (0.0,),
        )
        for dtype in dtypes
        for dim in head_dims
    )
