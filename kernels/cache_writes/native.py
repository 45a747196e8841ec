"""The native kernels that write into a KV cache, each with the interface of a library.

`native:append` and `native:append_mla` have FlashInfer's, `native:reshape_and_cache` and `native:concat_and_cache`
vLLM's, and `native:store_cache` and `native:set_mla` SGLang's. `native:reshape_and_cache_head` is vLLM's with scales of
heads (PR 30141), and `native:reshape_and_cache_token_head` its fp8_per_token_head (PR 38378). Of NVFP4,
`native:append_nvfp4` is FlashInfer's, and `native:reshape_and_cache_nvfp4` vLLM's. Others rotate keys and queries, as a
part of an append or by themselves, copy keys and values out of the cache, or within it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from msgspec import structs

from attnfuzz.kernels.cache_writes.copy_session import CopySession
from attnfuzz.kernels.cache_writes.gather_session import GatherSession
from attnfuzz.kernels.cache_writes.interfaces import (
    append,
    append_mla,
    append_nvfp4,
    concat_and_cache,
    copy_pages,
    gather,
    gather_mla,
    move_tokens,
    reshape_and_cache,
    reshape_and_cache_blocks,
    reshape_and_cache_head,
    reshape_and_cache_token_head,
    rope_append,
    rope_append_mla,
    rope_store,
    rotate,
    rotate_and_quantise,
    rotate_latents,
    set_mla,
    store_cache,
)
from attnfuzz.kernels.cache_writes.rope_session import RopeSession, RotationSession
from attnfuzz.kernels.cache_writes.rotation import Rotation
from attnfuzz.kernels.cache_writes.writer_backend import CACHES, WRITES, WriterBackend, in_shared_pools
from attnfuzz.kernels.cache_writes.writer_session import WriterSession
from attnfuzz.kernels.native import build
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import (
    SPECULATIVE,
    BlockScales,
    Granularity,
    KvView,
    PaddedSlot,
    QueryView,
)
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.rope import RopeScaling, RotaryShare


@dataclass(frozen=True, kw_only=True)
class NativeWriter(WriterBackend):
    """A native kernel as a writer called `label`. Planted defects replace the function or the session."""

    label: str = ""
    session: type[WriterSession] = WriterSession
    build: Callable[[Callable[[str], None]], object] = build.load

    @property
    def name(self) -> str:
        """The label."""
        return self.label

    def missing(self) -> str | None:
        """Return the reason that this machine can't compile the kernels."""
        return build.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile the kernels."""
        self.build(progress)

    def kind(self) -> type[WriterSession]:
        """Return the class of its sessions."""
        return self.session


_ALL: Final = structs.replace(
    WRITES,
    graph_modes=SPECULATIVE,
    layouts=tuple(KvLayout),
    padding=True,
    padded_slots=(PaddedSlot.DUMMY,),
    query_views=tuple(QueryView),
    value_strides=True,
    kv_views=tuple(KvView),
    unequal_head_dims=True,
    pool_holes=True,
)
# Slot 0 is skipped, as in SGLang since 0.5.17 (PR #32477); before, it was written.
_RESERVES: Final = structs.replace(_ALL, padded_slots=(PaddedSlot.DUMMY, PaddedSlot.RESERVED))
_SKIPS: Final = structs.replace(_ALL, padded_slots=(PaddedSlot.NOWHERE,), fp8_kv=True, kv_scales=True)


def _of_latents(can: Capability) -> Capability:
    return structs.replace(
        can,
        latent=True,
        max_head_dim=576,
        layouts=(KvLayout.HND,),
        kv_views=(KvView.SEPARATE, KvView.TOKEN_MAJOR),
        value_strides=False,
    )


def _with_blocks(can: Capability, *, multiple: int) -> Capability:
    """Add caches of NVFP4, whose head dims are multiples of a whole number of blocks."""
    dims = tuple(dim for dim in (16, 32, 64, 80, 96, 128, 192, 256) if dim % multiple == 0)
    return structs.replace(can, fp8_kv=False, kv_scales=True, granularities=(Granularity.BLOCK,), head_dims=dims)


def _with_scales_per(granularity: Granularity) -> Capability:
    return structs.replace(_SKIPS, kv_scales=False, granularities=(granularity,))


def _writer(label: str, function: Callable[..., Any], capability: Capability, **how: Any) -> NativeWriter:
    return NativeWriter(function, capability, label=f"native:{label}", **how)


# A table has any frequencies.
_ROTARY: Final = {"rotary": tuple(RotaryShare), "rope_scalings": tuple(RopeScaling)}
_ROTATES: Final = structs.replace(_SKIPS, kv_views=_ALL.kv_views, **_ROTARY)
_COMPUTES: Final = Rotation(angle=2.0**-23, cos_sin=2.0**-24)
# It gets no values.
_ROTATES_ALONE: Final = structs.replace(_ROTATES, value_strides=False)
# A gather and a copy are of requests, in no graph.
_READS: Final = structs.replace(
    _SKIPS, graph_modes=(), padding=False, query_views=(QueryView.CONTIGUOUS,), value_strides=False
)

NATIVE_WRITERS: Final = (
    _writer("append", append, in_shared_pools(_ALL)),
    _writer("append_nvfp4", append_nvfp4, _with_blocks(_ALL, multiple=16)),
    _writer("append_mla", append_mla, _of_latents(_ALL)),
    _writer("reshape_and_cache", reshape_and_cache, in_shared_pools(_SKIPS)),
    _writer("reshape_and_cache_head", reshape_and_cache_head, _with_scales_per(Granularity.HEAD)),
    _writer("reshape_and_cache_token_head", reshape_and_cache_token_head, _with_scales_per(Granularity.TOKEN_HEAD)),
    _writer(
        "reshape_and_cache_nvfp4",
        reshape_and_cache_blocks,
        structs.replace(
            _with_blocks(_SKIPS, multiple=64), block_scales=(BlockScales.SWIZZLED,), page_sizes=(4, 8, 16, 32, 64, 128)
        ),
    ),
    _writer("concat_and_cache", concat_and_cache, _of_latents(_SKIPS)),
    _writer(
        "store_cache",
        store_cache,
        in_shared_pools(structs.replace(_RESERVES, fp8_kv=True, kv_scales=True, kv_views=(KvView.TOKEN_MAJOR,))),
    ),
    _writer("set_mla", set_mla, _of_latents(_RESERVES)),
    _writer("rope_append", rope_append, _ROTATES, session=RopeSession),
    _writer("rope_append_mla", rope_append_mla, _of_latents(_ROTATES), session=RopeSession),
    _writer(
        "rope",
        rotate,
        structs.replace(_ROTATES_ALONE, fp8_kv=False, kv_scales=False, rope_scalings=(RopeScaling.NONE,)),
        session=RotationSession,
        rotation=_COMPUTES,
        writes=frozenset({"query", "key"}),
    ),
    _writer(
        "rope_mla",
        rotate_latents,
        structs.replace(_of_latents(_ROTATES), fp8_kv=False, kv_scales=False),
        session=RotationSession,
        writes=frozenset({"query", "key"}),
    ),
    _writer(
        "rope_store",
        rope_store,
        structs.replace(_ALL, fp8_kv=True, kv_scales=True, kv_views=(KvView.TOKEN_MAJOR,), **_ROTARY),
        session=RopeSession,
        rotation=Rotation(rounds_result=True),
        writes=CACHES | {"query", "key"},
    ),
    _writer("rope_quantise", rotate_and_quantise, _ROTATES_ALONE, session=RotationSession),
    _writer("gather", gather, _READS, session=GatherSession),
    _writer("gather_mla", gather_mla, _of_latents(_READS), session=GatherSession),
    _writer("copy_blocks", copy_pages, _READS, session=CopySession),
    _writer("move_kv_cache", move_tokens, _READS, session=CopySession),
)
"""The native writers."""
