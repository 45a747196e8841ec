"""KV pools shared by several layers: pages that have left a window, and a second group of layers."""

from msgspec.structs import replace

from attnfuzz.reference.case import Case, Granularity, OtherGroup, Pages, Tombstone
from attnfuzz.reference.geometry import Geometry

MAX_PAGE_SIZE = 4096
"""Maximum number of tokens of a page."""


def pages_left(case: Case, q_len: int, kv_len: int) -> int:
    """Return how many of a request's first pages have left the window of its first query, and are free.

    With `window_tail`, it is the window of the query after its last one. The last query is aligned to the last key.
    """
    if case.pages.tombstone is Tombstone.NONE:
        return 0
    query = kv_len if case.pages.window_tail else kv_len - q_len
    return max(0, query - case.geometry.window_left) // case.geometry.page_size


def case_of_other_group(case: Case) -> Case:
    """Return the same steps for the other group of layers, which has other tokens and no window."""
    pages = Pages(order=case.pages.order, hole=case.pages.hole, behind=case.pages.behind, free=case.pages.free)
    geometry = _geometry(case.geometry, case.pages.other_group)
    return replace(case, geometry=geometry, pages=pages, seed=case.seed ^ 1)


def _geometry(geometry: Geometry, group: OtherGroup) -> Geometry:
    plain = replace(geometry, window_left=-1, sinks=False)
    if group in (OtherGroup.LONGER_PAGES, OtherGroup.SHORTER_PAGES):
        longer = group is OtherGroup.LONGER_PAGES
        scaled = _halved if longer else _doubled
        return replace(
            plain,
            page_size=(_doubled if longer else _halved)(geometry.page_size),
            head_dim_qk=scaled(geometry.head_dim_qk),
            head_dim_vo=scaled(geometry.head_dim_vo),
        )
    if group in (OtherGroup.MORE_HEADS, OtherGroup.FEWER_HEADS):
        more = group is OtherGroup.MORE_HEADS
        kv_heads = (_doubled if more else _halved)(geometry.kv_heads)
        size = (_halved if more else _doubled)(geometry.page_size)
        return replace(plain, page_size=size, kv_heads=kv_heads, q_heads=kv_heads)
    return plain


def _doubled(number: int) -> int:
    return 2 * number


def _halved(number: int) -> int:
    return number // 2


def may_share_pool(geometry: Geometry, granularity: Granularity, group: OtherGroup) -> bool:
    """Return whether pages of this group can have as many bytes as those of `geometry`, in a pool without scales."""
    if geometry.latent is not None or granularity is not Granularity.TENSOR:
        return False
    if group in (OtherGroup.MORE_HEADS, OtherGroup.SHORTER_PAGES):
        return geometry.page_size % 2 == 0
    if group is OtherGroup.SAME:
        return True
    halved = (geometry.head_dim_qk, geometry.head_dim_vo) if group is OtherGroup.LONGER_PAGES else (geometry.kv_heads,)
    return all(number % 2 == 0 for number in halved) and 2 * geometry.page_size <= MAX_PAGE_SIZE
