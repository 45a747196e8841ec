"""The features that a geometry shows, part by part: what a search leans to."""

from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Latent
from attnfuzz.strategies.choices import on
from attnfuzz.strategies.coverage.classes import (
    KV_HEADS,
    SERVED_RANK,
    group_class,
    head_dim_class,
    page_size_class,
)

# A window of more keys than this is longer than all keys in most cases.
_LONG_WINDOW = 31

shown_by_page_size = on("page size", page_size_class)
shown_by_head_dim = on("head dim", head_dim_class)


def shown_by_dtypes(dtypes: tuple[DType, DType]) -> tuple[str, ...]:
    """Those of the dtypes of queries and of the KV cache."""
    queries, cache = dtypes
    return f"dtype={queries}", "KV dtype=float8_e4m3" if cache is DType.FLOAT8_E4M3 else "KV dtype=that of the queries"


def shown_by_heads(pair: tuple[int, int]) -> tuple[str, ...]:
    """Those of (query heads, KV heads)."""
    q_heads, kv_heads = pair
    return f"KV heads={KV_HEADS.of(kv_heads)}", f"group={group_class(q_heads // kv_heads)}"


def shown_by_value_dim(dim_qk: int, dim_vo: int) -> tuple[str, ...]:
    """That of the head dim of V, beside that of K."""
    return ("V dim=as K's" if dim_qk == dim_vo else "V dim=smaller" if dim_vo < dim_qk else "V dim=larger",)


def shown_by_latent(latent: Latent | None) -> tuple[str, ...]:
    """Those of latents; none of an attention without."""
    if latent is None:
        return ()
    rank = "rank 512" if latent.rank == SERVED_RANK else "smaller"
    return f"latent={rank}", *shown_by_head_dim(latent.rank + latent.rope)


def shown_by_window(left: int) -> tuple[str, ...]:
    """That of a window of `left` keys before a query's own, over keys of the usual number."""
    if left <= 0:
        return ("window=none" if left else "window=a query's own key",)
    return ("window=longer than all keys",) if left >= _LONG_WINDOW else ("window=cuts keys off",)


def shown_by_soft_cap(cap: float) -> tuple[str, ...]:
    """That of a soft cap; none without."""
    return ("soft cap=yes",) if cap else ()
