"""A backend made from a function that writes new tokens into a paged KV cache, to test a kernel of one's own.

    def store(*, key, value, k_cache, v_cache, slot_mapping): ...

    MINE = WriterBackend(store)

The function is called once per step with keyword arguments, those of the following that it has parameters for (with
`**_`: all):

- key, value [tokens, kv_heads, head_dim]: the new tokens of the step in the dtype of the queries, one request after
  another. Padded tokens follow, whose contents don't matter. Rows may be slices of larger ones;
  with `value_strides` in the capability, those of keys or of values alone
- k_cache, v_cache [pages, page_size, kv_heads, head_dim]; [pages, kv_heads, page_size, head_dim] in the layout HND
- slot_mapping [tokens] int64: page * page_size + slot of each token. A padded token has -1, which has to be skipped, or
  0, a slot that no request owns, and which may have to be skipped; the capability's `padded_slots` says which. With
  `window_tail`, so have tokens that leave the window within the step
- positions [tokens] int32: each token's place among its request's keys, 0 for a padded one
- batch_indices [tokens] int32: each token's row in the following, -1 for a padded one that has to be skipped
- block_tables [batch, columns], seq_lens [batch], cum_seq_lens_q [batch + 1]: as `FunctionBackend` has them, in int32;
  rows of padding follow those of the requests. Pages that have left a window have tombstones there and in kv_indices
- kv_indices, kv_indptr [batch + 1], kv_last_page_len [batch] int32: the pages of each row in FlashInfer's form
- with `rotary` in the capability: query [tokens, q_heads, head_dim]; query_out, where its rotation may go, in the dtype
  of the cache; rope_positions [tokens] int64, which need not be the places in the cache; rotary_dim, the number of
  elements to rotate from a head's first on (of a latent: behind the first `rank`); is_neox, whether pairs are its
  halves, or else neighbours; cos_sin_cache [positions, rotary_dim] float32, cosines first; rope_theta
- k_scale, v_scale: the cache holds the number nearest to value / scale, if it is one of fp8
- k_scales, v_scales float32: the same with tensors of scales, None without them. [kv_heads]: they are given.
  [pages, page_size, kv_heads] or [pages, kv_heads, page_size], in the layout of the cache: the function computes the
  scale of each head of each token, its largest magnitude over 448, and writes it there. With a last axis of head_dim /
  16 in e4m3, they are those of NVFP4's blocks, which k_scale and v_scale multiply; the caches are then of bytes
- kv_layout: "HND" or "NHD"

With latents there are `key` [tokens, 1, rank + rope] and `kv_cache` [pages, 1, page_size, rank + rope] in place of the
keys and values, and `rank`.

After each step, the whole cache is compared: the new tokens with their values, everything else with its bits before.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from attnfuzz.kernels.cache_writes.copy_session import CopySession
from attnfuzz.kernels.cache_writes.gather_session import GatherSession
from attnfuzz.kernels.cache_writes.rope_session import RopeSession, RotationSession
from attnfuzz.kernels.cache_writes.rotation import Rotation
from attnfuzz.kernels.cache_writes.stored import Conversion
from attnfuzz.kernels.cache_writes.writer_session import Writer, WriterSession
from attnfuzz.kernels.functions.function_backend import OfFunction
from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, OtherGroup, Tombstone
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel

WRITES = Capability(writes=True, empty_kv=False, kv_shorter_than_q=False)
"""Default capability of a writer: all modes; no fp8 cache, and no padding."""


CACHES = frozenset({"k_cache", "v_cache", "kv_cache"})
"""The caches that a writer may change."""

OUTPUTS = frozenset({"query_out", "key_out", "value_out"})
"""The arguments for rows that a function computes."""

COMPUTED_SCALES = frozenset({"k_scales", "v_scales"})
"""Those that it may change as well if it computes scales."""

_WINDOWS = (-1, 15, 127)
"""Those of layers whose geometries come in buckets."""


def in_shared_pools(can: Capability, groups: tuple[OtherGroup, ...] = tuple(OtherGroup)[1:]) -> Capability:
    """Return the capability with pools of windows, and of layers of `groups`.

    It fits each kernel that finds a token by its slot, or by the page of its position, which has not left the window.
    No kernel is compiled for a window.
    """
    buckets = tuple(structs.replace(each, windows=_WINDOWS) for each in can.buckets)
    tombstones = tuple(Tombstone)[1:]
    return structs.replace(
        can, buckets=buckets, windows=True, tombstones=tombstones, window_tail=True, other_groups=groups
    )


@dataclass(frozen=True)
class WriterBackend(OfFunction):
    """A function that writes into the KV cache as a backend of the same name.

    `rotation` says how it rotates keys, and `conversion` how it rounds to fp8. `arrange` prepares further or other
    arguments in guarded memory, such as a cache in the kernel's own layout, of which `writes` names those that the
    kernel may change; `restore` copies such a cache back after the launch.

    Raises ValueError for a capability without `writes`, and for pools with tombstones or of two groups where it stores
    nothing.
    """

    function: Callable[..., Any]
    capability: Capability = WRITES
    conversion: Conversion = Conversion()
    arrange: Callable[..., Mapping[str, Any]] | None = None
    restore: Callable[..., None] | None = None
    writes: frozenset[str] = CACHES | OUTPUTS
    rotation: Rotation = Rotation()

    def __post_init__(self) -> None:
        if not self.capability.writes:
            raise ValueError(f"{self.name}: the capability is one of attention: set writes=True, or use WRITES")
        if not self.kind().stores and (self.capability.tombstones or self.capability.other_groups):
            raise ValueError(f"{self.name}: it stores no tokens: leave out tombstones and other_groups")

    @property
    def contract(self) -> Contract:
        """A writer promises nothing beyond the right contents."""
        return Contract()

    @property
    def shares_pool(self) -> bool:
        """Whether attention can read its pool: it stores new tokens there."""
        return self.kind().stores

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the model of attention, which nothing asks for."""
        del dtype
        return NoiseModel.unknown_kernel()

    @property
    def writer(self) -> Writer:
        """The function and its helpers."""
        computes = any(each.computed for each in self.capability.granularities)
        op = Op(re.sub(r"\W", "_", self.name), self.function, self.writes | (COMPUTED_SCALES if computes else set()))
        return Writer(op, self.conversion, self.arrange, self.restore, rotation=self.rotation)

    @property
    def ops(self) -> Mapping[str, Op]:
        """The function."""
        op = self.writer.op
        return {op.name: op}

    def open(self, case: Case, bench: Bench, kv: PagedKv | None = None) -> WriterSession:
        """Open a session on one case, on a pool of its own, or on `kv`."""
        return self.kind()(self.writer, case, bench, kv)

    def kind(self) -> type[WriterSession]:
        """Return the class of its sessions."""
        return RopeSession if self.capability.rotary else WriterSession


class RotationBackend(WriterBackend):
    """A function that rotates keys and queries, and may convert them to fp8, but stores nothing in the cache.

    It rotates `key` in place, or into `key_out` [tokens, kv_heads, head_dim] in the dtype of the cache, divided by
    `k_scale` if that is fp8; and queries likewise. For a rotation in place, `writes` names the tensors.

    Raises ValueError for a capability without `writes` and `rotary`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.capability.rotary:
            raise ValueError(f"{self.name}: the capability rotates nothing: set rotary=tuple(RotaryShare)")

    def kind(self) -> type[WriterSession]:
        """Return the class of its sessions."""
        return RotationSession


class GatherBackend(WriterBackend):
    """A function that copies keys and values out of the cache: `key_out` and `value_out` [tokens, kv_heads, head_dim].

    Tokens of row b of `block_tables` go to rows out_indptr[b] to out_indptr[b + 1]: those from `seq_starts`[b] to the
    end, `seq_lens`[b]. Outputs have the dtype of the queries; numbers of an fp8 cache are multiplied by `k_scale` and
    `v_scale`. With latents, there is `key_out` alone. The cache must stay as it is.
    """

    def kind(self) -> type[WriterSession]:
        """Return the class of its sessions."""
        return GatherSession


class CopyBackend(WriterBackend):
    """A function that copies within the cache.

    It takes `page_pairs` [n, 2] int64, a page and the page to copy it to, which no other pair has; or `source_slots`
    and `target_slots` [n] int64. These may overlap: a target gets the contents that its source had before the call.
    """

    def kind(self) -> type[WriterSession]:
        """Return the class of its sessions."""
        return CopySession
