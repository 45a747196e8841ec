"""Bounds that keep a case cheap as a whole: if one of its parts is large, the others are small."""

from dataclasses import dataclass, replace
from enum import Enum, auto

from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import Geometry

# Intended mean number of multiplications in a case's attention: a millisecond or two in fp64 on one core.
_PRODUCTS = 1_000_000
# Geometries that allow fewer pairs of a query and a key are too costly for long or wide cases.
_ROOM_TO_GROW = 150
# Maximum lengths are steps of this ladder, which limits the number of strategies to build.
_LADDER = (8, 12, 18, 26, 40, 66, 130, 200, 330, 400, 1000, 2000, 4000, 6000, 12000, 24000)
# Number of keys of a very long KV, relative to the intended mean number of pairs.
_FAR = 32
_FARTHEST = 24000
# Number of queries that reach into the third tile of a kernel with tiles of 128.
_MOST_QUERIES = 330
# New tokens of a writer, which computes no attention: more than the 1,024 threads of a block.
_MOST_WRITTEN = 2500
_HUGE_BATCH = 600
# Number of pairs from which long KVs have more than 1000 keys, and wide batches more than 32 requests. Larger ones show
# no other features, and cost at most 0.1 s.
_ROOM_TO_REACH, _ROOM_FOR_HUGE = 500, 300

ANY_ROWS = 1 << 30
"""More rows than any step has."""

MOST_ROUNDS = 3
"""Rounds of decode, or of verify and draft extend, in the life of a batch after its prompts."""


class Extent(Enum):
    """The large dimension of a case: none (a few short requests), a long KV, or a wide batch.

    The others are rare, since they are costly: a very long KV, long prompts, or a huge batch.
    """

    FEW = auto()
    LONG = auto()
    WIDE = auto()
    FAR = auto()
    LONG_PROMPTS = auto()
    HUGE = auto()


@dataclass(frozen=True)
class Scope:
    """Maximum sizes of one case.

    `requests` are drawn one by one, and up to `seeded_requests` more from a seed. `kv_len` bounds drawn KV lengths, and
    `q_len` the new tokens of a prefill. `bucket` bounds the requests to which a graph or a data-parallel group pads a
    batch, unless the batch itself needs more. With `flat`, long KVs are as likely as short ones. An `outlier_kv_len`
    above 0 bounds the KV of one request that may be far longer than all others, like a long document in a batch of
    chats. With `one_step`, a case has a single step. `rows` bounds the tokens of a step, including padded ones.
    """

    requests: int
    seeded_requests: int
    kv_len: int
    q_len: int
    bucket: int
    flat: bool = False
    outlier_kv_len: int = 0
    one_step: bool = False
    rows: int = ANY_ROWS

    def of_steps(self, rows: int | None) -> "Scope":
        """Return the scope for steps of at most `rows`; None is no bound."""
        return self if rows is None else replace(self, rows=rows, q_len=min(self.q_len, rows))

    def of_batch(self, tokens_per_request: int) -> "Scope":
        """Return the scope of a batch whose requests have at most `tokens_per_request`."""
        most = self.rows // tokens_per_request
        requests = min(self.requests, most)
        return replace(self, requests=requests, seeded_requests=min(self.seeded_requests, most - requests))


def scope_of(extent: Extent, geometry: Geometry, device: Device, *, writes: bool = False) -> Scope:
    """Return the scope that keeps cases of this extent and geometry near the intended cost, also for writers."""
    pairs = _PRODUCTS // (geometry.q_heads * (geometry.head_dim_qk + geometry.head_dim_vo))
    second_page = geometry.page_size + 2
    rare = _rare_scope(extent, pairs, second_page, device, most_queries=_MOST_WRITTEN if writes else _MOST_QUERIES)
    if rare is not None:
        return rare
    if pairs < _ROOM_TO_GROW:
        extent = Extent.FEW
    bucket = max(4, min(64, pairs // 8))
    longest = _rung(min(2000, max(second_page, 2 * pairs)))
    if extent is Extent.LONG:
        return Scope(2, 0, longest, 4, bucket, flat=True)
    if extent is Extent.WIDE:
        return Scope(3, max(9, min(61, pairs // 8)), _rung(min(130, pairs // 32)), 4, 64, outlier_kv_len=longest)
    requests = max(2, min(5, pairs // 32))
    return Scope(requests, 0, _rung(max(second_page, min(200, pairs // 4))), max(4, min(34, pairs // 8)), bucket)


def _rare_scope(extent: Extent, pairs: int, second_page: int, device: Device, *, most_queries: int) -> Scope | None:
    """Return the scope of a rare extent, or None for other extents and if the geometry is too large for it."""
    if extent is Extent.FAR and (pairs >= _ROOM_TO_REACH or device is Device.CUDA):
        farthest = _rung(min(_FARTHEST, max(second_page, _FAR * pairs)))
        return Scope(1 if pairs < _ROOM_TO_GROW else 2, 0, farthest, q_len=2, bucket=4, flat=True)
    if extent is Extent.LONG_PROMPTS and pairs >= _ROOM_TO_REACH:
        return Scope(2, 0, min(130, _rung(second_page)), most_queries, bucket=4, one_step=True)
    if extent is Extent.HUGE and pairs >= _ROOM_FOR_HUGE:
        return Scope(3, _HUGE_BATCH - 3, _rung(min(66, second_page)), 2, bucket=64, one_step=True)
    return None


def _rung(length: int) -> int:
    """Return the smallest step of the ladder that is at least `length`, or the last one."""
    return next((rung for rung in _LADDER if rung >= length), _LADDER[-1])
