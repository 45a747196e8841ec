"""A release's own writers of the KV cache on a Hopper GPU: kernels that it compiles for each width of a row.

`store_cache` writes the keys and values of MHA, and `set_mla_kv_buffer` latents. Both get the arguments that the
release's pools pass (srt/mem_cache/memory_pool.py: `_set_kv_buffer_impl`; `set_mla_kv_buffer_triton`, which prefers the
kernel on Hopper). Both only copy: the pool converts tokens to its dtype first.

Slots must be in the pool: from 0.5.13 on, `store_cache` asserts it on the device; earlier versions, and
`set_mla_kv_buffer`, trust their caller.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from msgspec import structs
from packaging.version import Version

from attnfuzz.kernels.cache_writes.new_tokens import Metadata, WriteMetadata
from attnfuzz.kernels.cache_writes.writer_backend import in_shared_pools
from attnfuzz.kernels.cache_writes.writer_session import Writer, WriterSession
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.planning.latent_parts import latent_parts
from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.on_hopper import HopperRelease
from attnfuzz.kernels.sglang.backends import absent
from attnfuzz.kernels.sglang.compiled import CompiledKernel, run_kernel
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, KvView, Mode, PaddedSlot, QueryView, Step, Tombstone
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout, Latent
from attnfuzz.reference.noise import NoiseModel

_SINCE_LIMIT: Final = Version("0.5.13")
"""The first version whose `store_cache` asserts that slots are in the pool."""

_SINCE_WIDTHS: Final = Version("0.5.17")
"""The first version whose `store_cache` takes rows of two widths, and skips slot 0 (PR 32477)."""

_SINCE_LATENTS_SKIP: Final = Version("0.5.19")
"""The first version whose `set_mla_kv_buffer` skips slot 0 (PR 36003)."""

_SINCE_LATENTS: Final = Version("0.5.12")
"""The first version that has `set_mla_kv_buffer`."""

_DTYPES: Final = (DType.BFLOAT16, DType.FLOAT16)

_LATENT: Final = Latent(rank=512, rope=64, nope=128, vo=128)


class _Slots(WriteMetadata):
    """Slots in int64, or in int32 for window pools, as `translate_loc_from_full_to_swa` returned them up to 0.5.12.

    Both kernels take either.
    """

    def _of_tokens(self, step: Step, rows: int) -> Metadata:
        columns = super()._of_tokens(step, rows)
        if self._case.pages.tombstone is not Tombstone.NONE:
            columns["slot_mapping"] = columns["slot_mapping"].int()
        return columns


class ReleasedWriterSession(WriterSession):
    """A session on a kernel of a release."""

    planner_type = _Slots


def _store(version: Version) -> Callable[..., Mapping[str, Any]]:
    """Return the arguments with which a version's `_set_kv_buffer_impl` calls `store_cache`."""

    def arguments(
        *,
        key: torch.Tensor,
        value: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> Mapping[str, Any]:
        k_row, v_row = (tokens.shape[1] * tokens.shape[2] for tokens in (key, value))
        k_rows, v_rows = k_cache.view(-1, k_row), v_cache.view(-1, v_row)
        taken: dict[str, Any] = {
            "k": key.view(-1, k_row),
            "v": value.view(-1, v_row),
            "k_cache": k_rows,
            "v_cache": v_rows,
            "indices": slot_mapping,
            "row_bytes": k_row * k_rows.itemsize,
        }
        if version >= _SINCE_WIDTHS:
            taken["v_row_bytes"] = v_row * v_rows.itemsize
        if version >= _SINCE_LIMIT:
            taken["size_limit"] = len(k_rows)
        return taken

    return arguments


def _store_latents(*, key: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> Mapping[str, Any]:
    """Return the arguments with which `set_mla_kv_buffer_triton` calls the kernel."""
    nope, rope = latent_parts(key)
    rows = kv_cache.view(-1, 1, kv_cache.shape[-1])
    return {"kv_buffer": rows, "loc": slot_mapping, "cache_k_nope": nope, "cache_k_rope": rope}


def _nothing_more() -> None:
    """Pass no further arguments."""


@dataclass(frozen=True)
class _Kind:
    """A writer: its kernel, its first version, the first version that skips slot 0, and how it is called."""

    kernel: CompiledKernel
    since: Version
    skips_since: Version
    writes: frozenset[str]
    arrange: Callable[[Version], Callable[..., Mapping[str, Any]]]
    buckets: Callable[[Version], tuple[Bucket, ...]]
    widths: Callable[[Bucket], Iterator[tuple[int, int]]]


def _buckets(version: Version) -> tuple[Bucket, ...]:
    # Rows of 128 bytes to 8 KiB, for one to sixteen warps, and one that is not a multiple of 128 bytes (dim 80).
    dims = [(dim, dim) for dim in (128, 64, 80, 256)] + ([(192, 128)] if version >= _SINCE_WIDTHS else [])
    return tuple(
        Bucket(
            dtype=dtype,
            kv_dtype=dtype,
            head_dim_qk=key_dim,
            head_dim_vo=value_dim,
            heads=((1, 1), (4, 2), (3, 3), (16, 8), (16, 16)),
            page_sizes=(1, 16, 64),
            layouts=(KvLayout.NHD,),
        )
        for dtype in _DTYPES
        for key_dim, value_dim in dims
    )


def _latent_buckets(version: Version) -> tuple[Bucket, ...]:
    del version
    return tuple(
        Bucket(
            dtype=dtype,
            kv_dtype=dtype,
            head_dim_qk=_LATENT.rank + _LATENT.rope,
            head_dim_vo=_LATENT.rank,
            heads=((16, 1),),
            page_sizes=(1, 32, 64),
            layouts=(KvLayout.NHD,),
            latent=_LATENT,
        )
        for dtype in _DTYPES
    )


def _row_widths(of: Bucket) -> Iterator[tuple[int, int]]:
    for heads in sorted({kv_heads for _, kv_heads in of.heads}):
        size = heads * of.kv_dtype.torch_dtype.itemsize
        yield of.head_dim_qk * size, of.head_dim_vo * size


def _latent_widths(of: Bucket) -> Iterator[tuple[int, int]]:
    size = of.kv_dtype.torch_dtype.itemsize
    yield of.head_dim_vo * size, (of.head_dim_qk - of.head_dim_vo) * size


_KINDS: Final = {
    "store_cache": _Kind(
        kernel=CompiledKernel("kvcache", "store_cache", "can_use_store_cache"),
        since=Version("0"),
        skips_since=_SINCE_WIDTHS,
        writes=frozenset({"k_cache", "v_cache"}),
        arrange=_store,
        buckets=_buckets,
        widths=_row_widths,
    ),
    "set_mla_kv_buffer": _Kind(
        kernel=CompiledKernel("set_mla_kv_buffer", "set_mla_kv_buffer", "can_use_set_mla_kv_buffer"),
        since=_SINCE_LATENTS,
        skips_since=_SINCE_LATENTS_SKIP,
        writes=frozenset({"kv_buffer"}),
        arrange=lambda _: _store_latents,
        buckets=_latent_buckets,
        widths=_latent_widths,
    ),
}


def writer_of(named: Named, version: Version) -> HopperRelease:
    """Return the writer of a release. Raises ReleaseError if the release has none of that kind."""
    kind = _KINDS[named.kind]
    if version < kind.since:
        raise ReleaseError(f"{named.release} has no {named.kind}: name a release from {kind.since} on")
    op = Op(named.kind, partial(run_kernel, named.release, kind.kernel), kind.writes)
    writer = Writer(op, arrange=kind.arrange(version), parameters=_nothing_more)
    return HopperRelease(
        name=str(named),
        named=named,
        absent=absent,
        archs=frozenset({Arch.HOPPER}),
        capability=_capability(kind, version),
        contract=Contract(),
        session=partial(ReleasedWriterSession, writer),
        kernels=(op,),
        theoretical=lambda _: NoiseModel.unknown_kernel(),
        modules_of=partial(_modules_of, named, kind),
    )


def _capability(kind: _Kind, version: Version) -> Capability:
    can = Capability(
        device=Device.CUDA,
        buckets=kind.buckets(version),
        modes=Mode.of_kernels(),
        graph_modes=SPECULATIVE,
        writes=True,
        padding=True,
        padded_slots=(PaddedSlot.RESERVED if version >= kind.skips_since else PaddedSlot.DUMMY,),
        empty_kv=False,
        kv_shorter_than_q=False,
        # A row contains all heads of a token (`view` in _set_kv_buffer_impl).
        query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
        kv_views=(KvView.SEPARATE, KvView.TOKEN_MAJOR),
    )
    if can.latent:
        return can
    # `free_swa` sets the mapping of freed slots to 0, which full_to_swa_index_mapping then gives to their tokens.
    return structs.replace(in_shared_pools(can, groups=()), tombstones=(Tombstone.NULL,))


def _modules_of(named: Named, kind: _Kind, of: Bucket) -> tuple[Module, ...]:
    # The files of a source tree may change, so the kernel is compiled at its first use, not ahead of time.
    if named.tree is not None:
        return ()
    return tuple(kind.kernel.module(named.release, widths) for widths in kind.widths(of))
