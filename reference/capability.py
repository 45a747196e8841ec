"""Capabilities: the features of cases that a backend supports, and the reasons for rejecting others.

A reason is a noun phrase for the sentence "NAME does not support ...".
"""

import math

import msgspec
from msgspec.structs import force_setattr

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.arguments import ArgumentRule, EarlierUse
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import (
    BlockScales,
    Case,
    Granularity,
    KvView,
    Magnitude,
    Mask,
    Mode,
    OtherGroup,
    PaddedSlot,
    QueryView,
    Tombstone,
)
from attnfuzz.reference.checked_fields import check_fields
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edges import EdgeRule
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.features.chosen import contradictions, excluded, known_words, lacking
from attnfuzz.reference.geometry import Geometry, KvLayout
from attnfuzz.reference.nvfp4 import BLOCK
from attnfuzz.reference.related import related
from attnfuzz.reference.rope import Pairing, RopeScaling, RotaryShare
from attnfuzz.reference.serving import Interleave
from attnfuzz.reference.validity import ImpossibleCase, valid_related, validate

FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """The cases that a backend supports, by the groups of the table of features (`attnfuzz.reference.features`).

    A feature that is False or empty, such as `fp8_kv`, is never drawn. The defaults are those of a plain kernel, of a
    `FunctionBackend` too: all `modes` of one forward pass and pages in the layout NHD, without windows, sinks, soft
    caps, fp8 caches or padding.

    **The backend.** With `buckets`, it supports their geometries only: all other fields about geometries are then
    derived from the buckets, and values passed for them are ignored. `patience` multiplies the time after which a case
    counts as hanging (30 s), for slow kernels such as interpreted ones. With `writes`, it computes no attention, but
    writes the new tokens of each step into the KV cache.

    **Every case.** A case has all features named in `always` and none of those in `never`, by the words of reports and
    ledgers (docs/reference/features.md): `windows=True, always=("window",)` for a kernel that can't be called without a
    window.

    **Steps and requests.** `graph_modes` are the modes that can be captured. Without `kv_shorter_than_q`, a request has
    at least as many keys as queries, unless `empty_kv` is True: then it may also have none. New tokens of a writer are
    keys, so both must be False. A writer with `window_tail` takes steps of which only the last tokens are stored.

    **Geometry.** `latent` backends run multi-head latent attention, the others do not. `max_head_dim` bounds both head
    dims; `head_dims` are the only ones, if given. `unequal_head_dims` allows head_dim_qk != head_dim_vo. `sinks_dtype`
    is the dtype in which a `FunctionBackend` gets its sinks; None is that of the queries. `masks` are the keys that a
    query may see; with EMPTY_ROWS among them, it may see none, although its request has keys. `windowed_masks` are the
    masks that can be combined with a window: a query sees a key if both allow it. With `right_windows`, the window of a
    full mask may end a number of keys after a query's own (`Geometry.window_right`). With `attention_chunks`, layers
    without windows may limit queries to the keys of their own chunk (`Geometry.attention_chunk`).

    **Numbers.** `kv_scales` are the dtypes of the KV caches that have scales, or True for all. `granularities` are
    those of the scales of quantised caches; with BLOCK, these are of NVFP4, whose scales have one of the layouts
    `block_scales`. With `query_scales`, a server's checkpoint has a scale of queries, and with `kept_queries` it may
    leave them unquantised with a quantised cache. `magnitudes` are those of q, K and V where the KV cache is not
    quantised: leave out those that a kernel does not promise, such as one that converts bf16 to fp16.

    **Memory.** `table_gaps` allows gaps between rows of the page table. `pool_holes` allows pools whose offsets pass
    2^31 because most of their pages have addresses and no memory: on a CPU, for a backend that touches no page without
    an owner. By default (None), a function on a CPU in a user's file has them if a trial shows that it touches none,
    and no other backend has. `tombstones` are those of the pools of layers with `windows`; `other_groups` are the
    geometries of layers that may share a pool with the case's. Both need a pool with pages from anywhere.

    **Writes.** Padded tokens have one of `padded_slots`. With `value_strides`, new values may have other strides than
    new keys: contiguous ones beside slices of fused rows, and the other way round. A writer with `rotary` also rotates
    one of these shares of each head, in one of the `pairings`, by frequencies of one of the `rope_scalings`.

    **Calls.** `arguments` are the supported argument forms besides the plain one, and `edges` the supported factors of
    0 and below and steps without requests, both with their standing; `earlier_uses` are those that the objects of a
    step may have had.

    **Servers.** A backend that `schedules` chooses the forwards of a step itself, within the limits of `Case.serving`;
    if it is `asynchronous`, it may do so before it has the tokens of the previous forward. `shared_keys` are the
    numbers of ranks that may share the keys of each request, each with whole query heads, and `interleaves` the lengths
    of runs of keys on one rank. `most_programs` bounds the rows of a step, times the query heads, times these ranks,
    for kernels that run a costly program for each; 0 is no bound.

    Raises TypeError for a field of a wrong type. Raises ValueError if only some buckets have latents, for a bucket
    without any of the modes, for `head_dims` of latents (which need buckets), for `granularities` and `kept_queries`
    without quantised caches, for sinks in integers or fp8, for a patience that is not a positive number, for `writes`
    with a feature of attention, for `rotary` without `writes`, for `most_programs` without ranks and buckets, or below
    two drafts, for `tombstones` with latents or `rotary`, for `masks` without CAUSAL, for others with latents or
    `writes`, and for words of `always` and `never` that are unknown or that no case can obey.
    """

    device: Device = Device.CPU
    buckets: tuple[Bucket, ...] = ()
    patience: float = 1.0
    writes: bool = False
    always: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    modes: tuple[Mode, ...] = Mode.of_kernels()
    graph_modes: tuple[Mode, ...] = ()
    padding: bool = False
    empty_kv: bool | None = None
    kv_shorter_than_q: bool = True
    window_tail: bool = False

    dtypes: tuple[DType, ...] = FLOATS
    fp8_kv: bool = False
    latent: bool = False
    max_head_dim: int = 256
    head_dims: tuple[int, ...] = ()
    unequal_head_dims: bool = False
    page_sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128)
    layouts: tuple[KvLayout, ...] = (KvLayout.NHD,)
    windows: bool = False
    sinks: bool = False
    sinks_dtype: DType | None = DType.FLOAT32
    soft_cap: bool = False
    masks: tuple[Mask, ...] = (Mask.CAUSAL,)
    windowed_masks: tuple[Mask, ...] = (Mask.CAUSAL,)
    right_windows: bool = False
    attention_chunks: bool = False

    kv_scales: bool | tuple[DType, ...] = False
    granularities: tuple[Granularity, ...] = (Granularity.TENSOR,)
    block_scales: tuple[BlockScales, ...] = (BlockScales.LINEAR,)
    query_scales: bool = False
    kept_queries: bool = False
    magnitudes: tuple[Magnitude, ...] = tuple(Magnitude)

    query_views: tuple[QueryView, ...] = (QueryView.CONTIGUOUS,)
    kv_views: tuple[KvView, ...] = (KvView.SEPARATE,)
    table_gaps: bool = True
    pool_holes: bool | None = None
    tombstones: tuple[Tombstone, ...] = ()
    other_groups: tuple[OtherGroup, ...] = ()

    padded_slots: tuple[PaddedSlot, ...] = (PaddedSlot.DUMMY,)
    value_strides: bool = False
    rotary: tuple[RotaryShare, ...] = ()
    pairings: tuple[Pairing, ...] = tuple(Pairing)
    rope_scalings: tuple[RopeScaling, ...] = (RopeScaling.NONE,)

    arguments: tuple[ArgumentRule, ...] = ()
    earlier_uses: tuple[EarlierUse, ...] = ()
    edges: tuple[EdgeRule, ...] = ()

    schedules: bool = False
    asynchronous: bool = True
    shared_keys: tuple[int, ...] = ()
    interleaves: tuple[Interleave, ...] = tuple(Interleave)
    most_programs: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.buckets:
            for field, value in _between_them(self.buckets).items():
                force_setattr(self, field, value)
        elif self.head_dims:
            force_setattr(self, "max_head_dim", max(self.head_dims))
            if self.latent:
                raise ValueError("head_dims are those of a backend without latents: with latents, give buckets")
        if self.sinks_dtype not in (None, *FLOATS):
            raise ValueError(f"sinks in {self.sinks_dtype}: give one of {', '.join(FLOATS)}, or None")
        if not 0 < self.patience < math.inf:
            raise ValueError(f"a patience of {self.patience!r}: give a positive number, 1 is 30 s")
        if self.writes and (self.sinks or self.soft_cap or self.edges or self.empty_kv or self.kv_shorter_than_q):
            raise ValueError(
                "a writer of the KV cache has neither sinks nor soft caps, divides by its scales, and its new tokens "
                "are keys: leave out edges, and set empty_kv=False and kv_shorter_than_q=False"
            )
        if self.rotary and not self.writes:
            raise ValueError("only a writer of the KV cache rotates keys: set writes=True")
        if Mask.CAUSAL not in self.masks:
            raise ValueError("masks must include causal: other masks are drawn in addition to it")
        if self.masks != (Mask.CAUSAL,) and (self.latent or self.writes):
            raise ValueError("masks other than causal are for attention without latents: leave them out")
        self._check_windows()
        self._check_granularities()
        self._check_programs()
        if any(bucket.modes and not set(bucket.modes) & set(self.modes) for bucket in self.buckets):
            raise ValueError(f"a bucket has modules for none of the modes {', '.join(self.modes)}")
        self._check_words()

    def _check_words(self) -> None:
        for field in ("always", "never"):
            try:
                force_setattr(self, field, known_words(TABLE, getattr(self, field)))
            except ValueError as error:
                raise ValueError(f"{field}: {error}") from error
        if (self.always or self.never) and (reason := next(contradictions(TABLE, self), None)):
            raise ValueError(reason)

    def _check_windows(self) -> None:
        if self.tombstones and self.latent:
            raise ValueError("no layer with latents has a pool with tombstones: leave them out")
        if self.rotary and (self.tombstones or self.other_groups):
            raise ValueError("a writer that rotates keys can't be tested on pools with tombstones or of two groups yet")
        if self.writes and self.windows and not self.tombstones:
            raise ValueError(
                "a window means nothing to a writer of the KV cache: give tombstones, or set windows=False"
            )
        if self.window_tail and not (self.writes and self.tombstones):
            raise ValueError("window_tail is for a writer of the KV cache with tombstones")

    def _check_programs(self) -> None:
        if not self.most_programs:
            return
        if not (self.buckets and self.shared_keys):
            raise ValueError("most_programs is for a backend with buckets and shared_keys")
        heads = max(query for bucket in self.buckets for query, _ in bucket.heads)
        if 2 * heads * max(self.shared_keys) > self.most_programs:
            raise ValueError("most_programs must allow two drafts of each bucket's heads on all ranks")

    def _check_granularities(self) -> None:
        odd = [dim for dim in self.head_dims if dim % BLOCK]
        if self.nvfp4_kv and (self.granularities != (Granularity.BLOCK,) or odd):
            raise ValueError(f"scales of blocks allow no other granularity, and need head dims in multiples of {BLOCK}")
        finer = any(each is not Granularity.TENSOR for each in self.granularities)
        if finer and (self.latent or not (self.fp8_kv or self.nvfp4_kv)):
            raise ValueError("only quantised caches without latents have scales per head: set fp8_kv=True")
        if self.kept_queries and (self.latent or not self.fp8_kv):
            raise ValueError("kept_queries is for quantised caches without latents: set fp8_kv=True")

    @property
    def takes_empty_kv(self) -> bool:
        """Whether a request with queries may have no keys: as `empty_kv` says, or else `kv_shorter_than_q`."""
        return self.kv_shorter_than_q if self.empty_kv is None else self.empty_kv

    @property
    def capturable(self) -> tuple[Mode, ...]:
        """The modes that a graph can hold: none for a backend without padding, since a capture needs padding."""
        return self.graph_modes if self.padding else ()

    @property
    def nvfp4_kv(self) -> bool:
        """Whether KV caches are NVFP4, which have scales of blocks."""
        return Granularity.BLOCK in self.granularities

    @property
    def kv_dtypes(self) -> tuple[DType, ...]:
        """The dtypes of quantised KV caches."""
        return (DType.FLOAT8_E4M3,) * self.fp8_kv + (DType.FLOAT4_E2M1,) * self.nvfp4_kv

    def why_not(self, case: AnyCase) -> str | None:
        """Return the first unsupported feature of `case` as a clause, or None if it is supported."""
        if not isinstance(case, Case):
            return "cases of other ops"
        reason = (
            (self.buckets and _why_not_buckets(self, case.geometry))
            or self._why_not_features(case)
            or lacking(TABLE, case, self.always)
            or excluded(TABLE, case, self.never)
        )
        if not reason and case.relation is not None:
            run = related(case).case
            other = self._why_not_features(run) or excluded(TABLE, run, self.never)
            reason = other and f"{other} (in its related run: {case.relation.words})"
        return reason or None

    def _why_not_features(self, case: Case) -> str | None:
        return TABLE.why_not(self, case) or _why_not_modules(self, case)

    def most_rows(self, q_heads: int, ranks: int) -> int | None:
        """Return the maximum number of rows of a step with `q_heads` on `ranks`, or None if there is no bound."""
        return self.most_programs // (q_heads * ranks) if self.most_programs else None

    def scales(self, kv_dtype: DType) -> bool:
        """Return whether KV caches of this dtype have scales."""
        return self.kv_scales if isinstance(self.kv_scales, bool) else kv_dtype in self.kv_scales

    def can_run(self, case: Case) -> bool:
        """Return whether `case` is possible and supported."""
        try:
            validate(case)
        except ImpossibleCase:
            return False
        return self.why_not(case) is None

    def can_relate(self, case: Case) -> bool:
        """Return whether `case`, which can run without its relation, can run with it."""
        try:
            other = valid_related(case)
        except ImpossibleCase:
            return False
        return not (self._why_not_features(case) or self._why_not_features(other))


def _between_them(buckets: tuple[Bucket, ...]) -> dict[str, object]:
    """Derive the fields of a capability about geometries from its buckets."""
    if len({bucket.latent is None for bucket in buckets}) > 1:
        raise ValueError("some buckets have latents and others do not: make two backends of them")
    latent = buckets[0].latent is not None
    return {
        "dtypes": tuple(dict.fromkeys(bucket.dtype for bucket in buckets)),
        "fp8_kv": any(bucket.kv_dtype is DType.FLOAT8_E4M3 for bucket in buckets),
        "latent": latent,
        "max_head_dim": max(max(bucket.head_dim_qk, bucket.head_dim_vo) for bucket in buckets),
        "head_dims": tuple(sorted({dim for bucket in buckets for dim in (bucket.head_dim_qk, bucket.head_dim_vo)})),
        "unequal_head_dims": not latent and any(bucket.head_dim_qk != bucket.head_dim_vo for bucket in buckets),
        "page_sizes": tuple(sorted({size for bucket in buckets for size in bucket.page_sizes})),
        "layouts": tuple(dict.fromkeys(layout for bucket in buckets for layout in bucket.layouts)),
        "windows": any(left >= 0 for bucket in buckets for left in bucket.windows),
        "sinks": any(True in bucket.sinks for bucket in buckets),
        "soft_cap": any(cap for bucket in buckets for cap in bucket.soft_caps),
    }


def _why_not_buckets(can: Capability, geometry: Geometry) -> str | None:
    """Return the difference between a geometry and its nearest bucket, or None if a bucket covers the geometry."""
    if any(bucket.covers(geometry) for bucket in can.buckets):
        return None
    nearest = min((bucket.differences(geometry) for bucket in can.buckets), key=len)
    asked, there = (", ".join(words) for words in zip(*nearest, strict=True))
    return f"{asked} (no module is compiled for that, the nearest is for {there})"


def _why_not_modules(can: Capability, case: Case) -> str | None:
    """Return the part of a step for which no module is compiled, or whose size is out of bounds, or None."""
    if not can.buckets:
        return None
    buckets = [bucket for bucket in can.buckets if bucket.covers(case.geometry)]
    rows = can.most_rows(case.geometry.q_heads, case.shared_keys.ranks)
    for step in case.steps:
        if rows is not None and step.padded_tokens > rows:
            return f"steps of more than {can.most_programs} rows times query heads and ranks"
        reasons = [bucket.why_not_step(step) for bucket in buckets]
        if reasons and all(reasons):
            return reasons[0]
    return None
