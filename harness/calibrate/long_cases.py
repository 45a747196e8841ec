"""Cases with long KV, which the general strategies do not draw: what grows with the number of keys shows there."""

from collections.abc import Iterator

from msgspec.structs import replace

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, Request, Step, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, Latent

LENGTHS = (4096, 16384, 65536)
_QUERIES = 4
_HEADS = 8
_PAGE = 64
_DIM = 64
_LATENT = Latent(rank=64, rope=16, nope=32, vo=32)


def long_cases(backend: str, can: Capability, dtype: DType, seed: int) -> Iterator[Case]:
    """A decode and an extend over each length, with each family of values, as far as `can` covers them."""
    geometry = _compiled(can, dtype) if can.buckets else _free(can, dtype)
    if geometry is None:
        return
    for length in LENGTHS:
        steps = (
            Step(
                mode=Mode.DECODE,
                requests=(Request(slot=0, q_len=1, kv_len=length),),
                padded_tokens=1,
                tokens_per_request=1,
            ),
            Step(
                mode=Mode.EXTEND,
                requests=(Request(slot=0, q_len=_QUERIES, kv_len=length),),
                padded_tokens=_QUERIES,
            ),
        )
        for index, family in enumerate(ValueFamily):
            case = Case(backend=backend, geometry=geometry, steps=steps, values=family, seed=seed + index)
            covered = tuple(step for step in steps if can.why_not(replace(case, steps=(step,))) is None)
            if covered:
                yield replace(case, steps=covered)


def _compiled(can: Capability, dtype: DType) -> Geometry | None:
    """The first geometry of queries of a dtype that modules are compiled for, and that sees all keys."""
    every = (bucket.simplest for bucket in can.buckets)
    return next((each for each in every if each.dtype is dtype and each.window_left < 0), None)


def _free(can: Capability, dtype: DType) -> Geometry:
    return Geometry(
        q_heads=_HEADS,
        kv_heads=1,
        head_dim_qk=_LATENT.rank + _LATENT.rope if can.latent else _DIM,
        head_dim_vo=_LATENT.rank if can.latent else _DIM,
        page_size=_PAGE if _PAGE in can.page_sizes else max(can.page_sizes),
        dtype=dtype,
        kv_dtype=dtype,
        kv_layout=can.layouts[0],
        latent=_LATENT if can.latent else None,
    )
