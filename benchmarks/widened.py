"""Drawn cases with many more heads: as varied as the general strategies make them, and thousands of rows at once."""

import msgspec

from attnfuzz.reference.case import Case, Launch
from attnfuzz.reference.validity import products

_ROWS = 8192
"""Rows (token and head) that a widened case comes close to, if none of the following keeps it smaller."""

_PRODUCTS = 30_000_000
"""Multiplications of a widened case's attention: some 10 ms of fp64 on one core."""

_KV_ELEMENTS = 4_000_000
_MOST_HEADS = 1024


def rows_of(case: Case) -> int:
    """Rows that judging a case judges, over its steps."""
    tokens = sum(step.tokens for step in case.steps if step.launch is not Launch.CAPTURE)
    return tokens * case.geometry.q_heads


def widened(case: Case, *, alike: bool = False) -> Case:
    """The same case with a multiple of its heads.

    Query and KV heads grow together, or, if `alike` or if there are latents, query heads alone: then more rows read
    the same keys.
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
