"""Widened cases: drawn cases with many more heads, to judge thousands of rows of every variety at once."""

import msgspec

from attnfuzz.reference.case import Case, Launch
from attnfuzz.reference.validity import products

_ROWS = 8192
"""Number of rows (token and head) that a widened case approaches, unless one of the following limits is smaller."""

_PRODUCTS = 30_000_000
"""Multiplications in the attention of a widened case: about 10 ms of fp64 on one core."""

_KV_ELEMENTS = 4_000_000
_MOST_HEADS = 1024


def rows_of(case: Case) -> int:
    """Return the number of rows judged in a case, over its steps."""
    tokens = sum(step.tokens for step in case.steps if step.launch is not Launch.CAPTURE)
    return tokens * case.geometry.q_heads


def widened(case: Case, *, alike: bool = False) -> Case:
    """Return the same case with a multiple of its heads.

    Query and KV heads grow together. With `alike`, or with latents, only query heads grow: more rows read the same
    keys.
    """
    geometry = case.geometry
    keep_kv = alike or geometry.latent is not None
    kv_elements = sum(case.slot_lengths().values()) * geometry.kv_heads * (geometry.head_dim_qk + geometry.head_dim_vo)
    ceilings = [_MOST_HEADS // geometry.q_heads, _ROWS // max(rows_of(case), 1), _PRODUCTS // max(products(case), 1)]
    if not keep_kv:
        ceilings.append(_KV_ELEMENTS // max(kv_elements, 1))
    factor = max(1, min(ceilings))
    heads = {"q_heads": geometry.q_heads * factor, "kv_heads": geometry.kv_heads * (1 if keep_kv else factor)}
    return msgspec.structs.replace(case, geometry=msgspec.structs.replace(geometry, **heads))
