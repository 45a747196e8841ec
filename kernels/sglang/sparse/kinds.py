"""The servers with sparse attention that run here: the kernels that they are started with, and their cases."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import structs
from packaging.version import Version

from attnfuzz.kernels.releases import deep_gemm, flash_attention
from attnfuzz.kernels.sglang.kinds import SglangKind
from attnfuzz.kernels.sglang.sparse.kernels import LIBRARIES, OPS
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.sparse.capability import VALUES, SparseCapability
from attnfuzz.reference.sparse.case import CHAIN, KvFormat, ListOrder, SparseMode, Tail


@dataclass(frozen=True)
class DsaKind(SglangKind):
    """A kind of server: `sparse` are its cases, `options` its start arguments for each format of the KV cache.

    `environment` are its variables, `gpu` is the compute capability of its GPU. With `drafting`, it runs the draft
    model. From the first version of `wide` to the one before the second, it takes lists of 2,048 alone.
    """

    sparse: SparseCapability = field(default_factory=SparseCapability)
    options: Mapping[KvFormat, Mapping[str, str]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    gpu: tuple[int, int] = (9, 0)
    drafting: bool = False
    wide: tuple[Version, Version] | None = None

    def capability_in(self, version: Version) -> SparseCapability:
        """Return the cases of such a server in a version."""
        can = self.sparse
        if version < self.captured_v2:
            can = structs.replace(can, replays=False)
        if self.wide is not None and self.wide[0] <= version < self.wide[1]:
            can = structs.replace(can, top_ks=(_WIDTH,))
        return can


_WIDTH: Final = 2048
"""The length of the lists of DeepSeek-V3.2 and GLM."""

_DSA: Final = SparseCapability(
    chains=(CHAIN,),
    # An idle rank has no rows of its own.
    modes=tuple(mode for mode in SparseMode if mode is not SparseMode.IDLE),
    gaps=False,
    formats=(KvFormat.LATENT, KvFormat.PACKED),
    # The only ones (0.5.23: mem_cache/memory_pool.py:5346 and :5371).
    page_sizes=(64,),
    index_dims=(128,),
    # FlashMLA takes 64 or 128 heads, to which a backend pads (layers/attention/dsa_backend.py:2821).
    heads=(1, 2, 4, 8, 16),
    # FlashMLA takes lists in blocks of 64.
    top_ks=(64, 128, 512),
    dims=((576, 512),),
    sinks=(False,),
    seconds=(False,),
    counts=(False,),
    ragged=(False,),
    # Scales of the fused store are no powers of two (kernels/jit/csrc/dsa/fused_store_index_cache.cuh).
    powers=(False,),
    orders=(ListOrder.RECENT,),
    tails=(Tail.MINUS_ONE,),
    values=(*VALUES, ValueFamily.UNEVEN),
    longest=1 << 13,
    patience=8.0,
)
"""The cases of a server whose lists are made by its own indexer."""

_HOPPER: Final = {
    KvFormat.LATENT: {"dsa_prefill_backend": "flashmla_sparse", "dsa_decode_backend": "fa3"},
    KvFormat.PACKED: {"dsa_prefill_backend": "flashmla_kv", "dsa_decode_backend": "flashmla_kv"},
}
"""The defaults on a Hopper GPU (arg_groups/overrides.py:674)."""

_SPARSE_PREFILL: Final = {
    KvFormat.LATENT: {"dsa_prefill_backend": "fa3", "dsa_decode_backend": "flashmla_sparse"},
    KvFormat.PACKED: {"dsa_prefill_backend": "flashmla_sparse", "dsa_decode_backend": "flashmla_kv"},
}
"""The other ones that both phases can have: prefills of packed latents attend to dequantised keys by offsets."""


_ALWAYS: Final = Version("0")
_CAPTURED: Final = Version("0.5.15")
"""The first version that captures a draft model's extends (speculative/eagle_worker_v2.py:463)."""

_OF_DRAFTS: Final = (SparseMode.PREFILL, SparseMode.EXTEND, SparseMode.VERIFY)
"""The steps of a draft model: its extends by all drafted tokens are those of a verification."""


_SPARSE: Final = {"SGLANG_DSA_PREFILL_DENSE_ATTN_KV_LEN_THRESHOLD": "0"}
"""By default, prefills of up to 2,048 keys attend to all of them (environ.py:1983)."""

_UNFUSED: Final = {"SGLANG_DSA_FUSE_TOPK": "0"}
"""Lists have positions, of which the attention makes slots (environ.py:1978)."""


_WIDE: Final = (Version("0.5.15.post1"), Version("0.5.21"))
"""Versions whose transform has no other width (0.5.20: kernels/ops/attention/dsa/transform_index.py:197, :223)."""


_BLACKWELL: Final = {KvFormat.LATENT: {"dsa_prefill_backend": "trtllm", "dsa_decode_backend": "trtllm"}}
"""Its kernels take raw latents, in bfloat16 here (mem_cache/kv_cache_configurator.py:3438)."""


def _kind(
    name: str,
    options: Mapping[KvFormat, Mapping[str, str]],
    environment: Mapping[str, str] = _SPARSE,
    *,
    drafting: bool = False,
) -> DsaKind:
    return DsaKind(
        name=name,
        module="dsa_backend",
        backend="DeepseekSparseAttnBackend",
        drafts="DeepseekSparseAttnMultiStepBackend",
        capability=Capability(),
        ops=lambda: (*OPS, *deep_gemm.OPS, *flash_attention.OPS),
        libraries=LIBRARIES,
        option="dsa",
        sparse=structs.replace(_DSA, modes=_OF_DRAFTS) if drafting else _DSA,
        options=options,
        environment=environment,
        drafting=drafting,
        captured_v2=_CAPTURED if drafting else _ALWAYS,
    )


SPARSE_KINDS: Final = {
    kind.name: kind
    for kind in (
        _kind("dsa", _HOPPER),
        _kind("dsa_ragged", _SPARSE_PREFILL),
        replace(
            _kind("dsa_unfused", _HOPPER, _SPARSE | _UNFUSED),
            sparse=structs.replace(_DSA, top_ks=(*_DSA.top_ks, _WIDTH)),
            wide=_WIDE,
        ),
        _kind("dsa_draft", _HOPPER, drafting=True),
        replace(
            _kind("dsa_trtllm", _BLACKWELL),
            gpu=(10, 0),
            sparse=structs.replace(_DSA, formats=(KvFormat.LATENT,)),
        ),
    )
}
"""The kinds by name."""
