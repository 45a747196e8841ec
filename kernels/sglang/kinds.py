"""The attention backends of SGLang that this project runs: their modules and classes, kernels, and capabilities."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import structs
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Op, Unsupported
from attnfuzz.kernels.libraries.interpreted import DTYPES
from attnfuzz.kernels.libraries.torch_sdpa import SDPA
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.releases import planned_runs
from attnfuzz.kernels.releases.latent_wrapper import LATENT_RUN
from attnfuzz.kernels.sglang import flash_attention, flash_mla, triton
from attnfuzz.kernels.sglang.orders import orders_of
from attnfuzz.kernels.sglang.torch_functions import Uncompiled, attend, attend_in_blocks, mask_of_blocks
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Mask, Mode, QueryView, Tombstone
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

ATTENTION: Final = "sglang.srt.layers.attention."

_ALWAYS: Final = Version("0")
_NEVER: Final = Version("9999")


@dataclass(frozen=True)
class SglangKind:
    """A kind of backend. Sessions, pools, batches and graphs are the same for all kinds.

    A file and line is that of SGLang 0.5.9 below sglang/srt/ unless another version is named.

    Attributes:
        name: Its name.
        module: Its module in `sglang.srt.layers.attention`.
        backend: Its class.
        drafts: The class that plans the decodes of a draft model; "" if a server can't draft with it.
        capability: The cases that it supports, in a version that has an order of events for each mode.
        ops: The kernels of this project below it, by the names of library functions. Triton's are the release's own.
        stand_ins: Replacements for library functions, by their names in the modules of the release.
        libraries: Modules of compiled libraries that it imports, with the replacements of their functions.
        option: The value of --attention-backend; by default the name.
        calibrated: Our own backend on the same kernels, whose noise model applies.
        theory: The noise of its kernels for a dtype, unless they are calibrated.
        check: Raises Unsupported for a case that takes its kernels too long here.
        captured_v2: The first version whose second worker captures its draft extends
            (speculative/eagle_worker_v2.py:278).
        since: Fields of the capability that differ from some version on.
        draft_windows: Whether a draft model may have a window.
        merged: The modes whose outputs are merged from those for the prefix and for new keys, each rounded.
        whole_latents: Whether a layer passes latents and queries in one part, and not their rotated elements apart
            (0.5.23: models/deepseek_common/utils.py:65).
        cascades: Whether verifies of trees are merged from attention to prefixes and to drafts.
        parts: The kinds of a server with one backend for prefills and another for decodes, in this order.

    """

    name: str
    module: str
    backend: str
    drafts: str
    capability: Capability
    ops: Callable[[], tuple[Op, ...]] = NATIVE.ops
    stand_ins: Mapping[str, Any] = field(default_factory=dict)
    libraries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    option: str = ""
    calibrated: str = ""
    theory: Callable[[DType], NoiseModel] = lambda _: NoiseModel.fp32_arithmetic()
    check: Callable[[Case], None] = lambda _: None
    captured_v2: Version = _ALWAYS
    since: Mapping[Version, Mapping[str, Any]] = field(default_factory=dict)
    draft_windows: bool = True
    merged: frozenset[Mode] = frozenset()
    whole_latents: bool = False
    cascades: bool = False
    parts: "tuple[SglangKind, SglangKind] | None" = None

    @property
    def server_name(self) -> str:
        """The value of --attention-backend."""
        return self.option or self.name

    @property
    def adapted_as(self) -> frozenset[str]:
        """The names of the kinds whose changes to a release this one needs."""
        return frozenset(part.name for part in self.parts or (self,))

    def serving(self, mode: Mode, seed: int) -> "SglangKind":
        """Return the kind that runs a mode on the server of a case with this seed: itself, unless it has parts.

        Verifies and draft extends are prefills or decodes, as --speculative-attention-mode says, which the seed
        chooses (models/deepseek_v2.py:1326, speculative/draft_utils.py:83).
        """
        if self.parts is None:
            return self
        prefill, decode = self.parts
        if mode in (Mode.DECODE, Mode.DRAFT_DECODE):
            return decode
        # An even and an odd seed may have different workers.
        return decode if mode.speculative and seed // 2 % 2 else prefill

    @property
    def path(self) -> str:
        """The full name of its module."""
        return f"{ATTENTION}{self.module}"

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the noise of its kernels."""
        return shipped_noise(self.calibrated, dtype, self.theory(dtype)) if self.calibrated else self.theory(dtype)


_ONE_WORKER: Final = Version("0.5.13")
"""The first version that only has the second worker, which captures draft extends of any backend."""

_COMMON: Final = Capability(
    modes=tuple(Mode),
    graph_modes=tuple(Mode),
    # The dtypes of served models.
    dtypes=(DType.BFLOAT16, DType.FLOAT16),
    layouts=(KvLayout.HND,),
    padding=True,
    empty_kv=False,
    kv_shorter_than_q=False,
    query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
    kv_views=(KvView.TOKEN_MAJOR,),
    table_gaps=False,
    # SGLang's Triton kernels run in an interpreter, program by program.
    patience=4.0,
)
"""The capability of a server: its pools are token-major, and no request has fewer keys than queries.

FP8 caches are excluded: from 0.5.17 on they are written by a CUDA kernel without an alternative (0.5.17:
kernels/ops/kvcache/fused_fp8_qkv_kv_cache.py:19).
"""

_TRANSLATED: Final = (Tombstone.NULL,)
"""The entries of pages that have left a pool of windows: slot 0 (0.5.23: mem_cache/allocator/swa.py, free_swa)."""

_TREES: Final = (Mask.CAUSAL, Mask.TREE)
"""The masks of verifies of chains and trees of drafts."""

_PLAIN: Final = (Mode.DECODE, Mode.EXTEND, Mode.CHUNKED_PREFILL)
"""The modes of a server without speculation."""

_ANY_PAGES: Final = (1, 16, 32, 64)
"""Page sizes of backends that address single tokens."""


def _check_prompts(case: Case) -> None:
    """Raise Unsupported for draft extends of requests that all lack a prompt, which no server has.

    They would be planned like prefills of projected keys (0.5.23: layers/attention/flashinfer_mla_backend.py:445).
    """
    drafts = [step for step in case.steps if step.mode is Mode.DRAFT_EXTEND_V2 and step.requests]
    if any(all(request.kv_len == request.q_len for request in step.requests) for step in drafts):
        raise Unsupported("a request that drafts has a prompt")


def _latent_ops() -> tuple[Op, ...]:
    return (*NATIVE.ops(), *planned_runs.OPS, LATENT_RUN)


_KINDS: Final = (
    SglangKind(
        "trtllm_mha",
        "trtllm_mha_backend",
        "TRTLLMHAAttnBackend",
        "TRTLLMHAAttnMultiStepDraftBackend",
        # Page sizes are those that server_args.py:1904 does not change (0.5.23: arg_groups/overrides.py:1183).
        structs.replace(_COMMON, page_sizes=(16, 32, 64), windows=True, tombstones=_TRANSLATED, sinks=True),
        calibrated="trtllm_mha",
        captured_v2=_ONE_WORKER,
        since={Version("0.5.23"): {"page_sizes": (16, 32, 64, 128)}},
        # flashinfer_backend.py:482 asserts it.
        draft_windows=False,
    ),
    SglangKind(
        "trtllm_mla",
        "trtllm_mla_backend",
        "TRTLLMMLABackend",
        "TRTLLMMLAMultiStepDraftBackend",
        # Its kernels return bfloat16 for any dtype (FlashInfer 0.6.3, mla.py, trtllm_batch_decode_with_kv_cache_mla).
        # server_args.py:1884 (0.5.23: arg_groups/overrides.py:1159) keeps these page sizes.
        structs.replace(_COMMON, dtypes=(DType.BFLOAT16,), latent=True, max_head_dim=576, page_sizes=(32, 64)),
        calibrated="trtllm_mla",
    ),
    SglangKind(
        "triton",
        "triton_backend",
        "TritonAttnBackend",
        "TritonMultiStepDraftBackend",
        structs.replace(
            _COMMON,
            dtypes=DTYPES,
            max_head_dim=128,
            page_sizes=_ANY_PAGES,
            windows=True,
            tombstones=_TRANSLATED,
            sinks=True,
            soft_cap=True,
            masks=_TREES,
        ),
        ops=tuple,
        theory=triton.noise,
        check=triton.check_case,
    ),
    SglangKind(
        "torch_native",
        "torch_native_backend",
        "TorchNativeAttnBackend",
        # draft_utils.py does not know it. A server disables its graphs (server_args.py:1840), and pads no batch: it has
        # no get_cuda_graph_seq_len_fill_value, which prepare_mlp_sync_batch calls.
        "",
        structs.replace(
            _COMMON,
            modes=_PLAIN,
            graph_modes=(),
            dtypes=(DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32),
            page_sizes=_ANY_PAGES,
            windows=True,
            padding=False,
        ),
        ops=lambda: (SDPA,),
        stand_ins={"scaled_dot_product_attention": attend},
        calibrated="torch_sdpa",
        theory=lambda dtype: NoiseModel.torch_sdpa_cpu(dtype.torch_dtype),
    ),
    SglangKind(
        "flex_attention",
        "torch_flex_backend",
        "TorchFlexAttnBackend",
        # A server neither drafts with it nor captures graphs (server_args.py:1846), and pads no batch, as above. Its
        # masks leave windows out.
        "",
        structs.replace(
            _COMMON,
            modes=_PLAIN,
            graph_modes=(),
            dtypes=(DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32),
            page_sizes=_ANY_PAGES,
            padding=False,
        ),
        ops=lambda: (SDPA,),
        stand_ins={
            "flex_attention": attend_in_blocks,
            "create_block_mask": mask_of_blocks,
            "torch": Uncompiled(),
        },
        calibrated="torch_sdpa",
        theory=lambda dtype: NoiseModel.torch_sdpa_cpu(dtype.torch_dtype),
    ),
    SglangKind(
        "fa3",
        "flashattention_backend",
        "FlashAttentionBackend",
        "FlashAttentionMultiStepBackend",
        structs.replace(
            _COMMON,
            page_sizes=(1, 16, 32, 64, 128),
            windows=True,
            tombstones=_TRANSLATED,
            sinks=True,
            attention_chunks=True,
            masks=_TREES,
        ),
        ops=lambda: (*NATIVE.ops(), *flash_attention.OPS),
        libraries=flash_attention.LIBRARY,
        calibrated="trtllm_mha",
        captured_v2=Version("0.5.23"),
        cascades=True,
    ),
    SglangKind(
        "fa3_mla",
        "flashattention_backend",
        "FlashAttentionBackend",
        "FlashAttentionMultiStepBackend",
        structs.replace(_COMMON, latent=True, max_head_dim=576, page_sizes=(1, 16, 32, 64)),
        ops=lambda: (*NATIVE.ops(), *flash_attention.OPS),
        libraries=flash_attention.LIBRARY,
        option="fa3",
        calibrated="trtllm_mla",
        captured_v2=Version("0.5.23"),
    ),
    SglangKind(
        "flashinfer",
        "flashinfer_backend",
        "FlashInferAttnBackend",
        "FlashInferMultiStepDraftBackend",
        # FlashInfer compiles FA2 for these head dims.
        structs.replace(
            _COMMON,
            page_sizes=_ANY_PAGES,
            head_dims=(64, 128, 256),
            windows=True,
            tombstones=_TRANSLATED,
            masks=_TREES,
        ),
        ops=lambda: (*NATIVE.ops(), *planned_runs.OPS),
        calibrated="trtllm_mha",
        captured_v2=Version("0.5.14"),
        # It asserts that there is one wrapper (flashinfer_backend.py:241).
        draft_windows=False,
        merged=frozenset({Mode.EXTEND, Mode.CHUNKED_PREFILL, Mode.DRAFT_EXTEND, Mode.DRAFT_EXTEND_V2}),
    ),
    SglangKind(
        "flashinfer_mla",
        "flashinfer_mla_backend",
        "FlashInferMLAAttnBackend",
        "FlashInferMLAMultiStepDraftBackend",
        structs.replace(_COMMON, latent=True, max_head_dim=576, page_sizes=_ANY_PAGES),
        ops=_latent_ops,
        option="flashinfer",
        calibrated="trtllm_mla",
        check=_check_prompts,
        captured_v2=_NEVER,
    ),
    SglangKind(
        "flashmla",
        "flashmla_backend",
        "FlashMLABackend",
        "FlashMLAMultiStepDraftBackend",
        structs.replace(
            _COMMON,
            latent=True,
            max_head_dim=576,
            page_sizes=(64,),
            # The first worker has no backend for draft extends, and captures none (speculative/draft_utils.py:245).
            graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND_V2),
        ),
        ops=lambda: (*_latent_ops(), flash_mla.DECODE),
        libraries={**flash_attention.LIBRARY, **flash_mla.LIBRARIES},
        calibrated="trtllm_mla",
        check=_check_prompts,
        captured_v2=Version("0.5.16"),
        whole_latents=True,
    ),
)

_ALONE: Final = {kind.name: kind for kind in _KINDS}


def _pair(prefill: str, decode: str) -> SglangKind:
    """Return the kind of a server with --prefill-attention-backend and --decode-attention-backend.

    A backend on trtllm-gen derives from one on FlashInfer's wrappers, and can only be paired with that one.
    """
    parts = _ALONE[prefill], _ALONE[decode]

    def ops() -> tuple[Op, ...]:
        return tuple({op.name: op for part in parts for op in part.ops()}.values())

    def check(case: Case) -> None:
        for part in parts:
            part.check(case)

    return SglangKind(
        f"{prefill}+{decode}",
        "hybrid_attn_backend",
        "HybridAttnBackend",
        parts[1].drafts,
        _of_both(parts[0].capability, parts[1].capability),
        ops=ops,
        calibrated=parts[0].calibrated,
        check=check,
        captured_v2=max(part.captured_v2 for part in parts),
        parts=parts,
    )


def _of_both(one: Capability, other: Capability) -> Capability:
    """Return the cases that two backends of a server support."""
    shared = {
        name: tuple(each for each in getattr(one, name) if each in getattr(other, name))
        for name in ("modes", "graph_modes", "dtypes", "page_sizes", "masks", "tombstones")
    }
    both = {
        name: getattr(one, name) and getattr(other, name)
        for name in ("windows", "sinks", "soft_cap", "attention_chunks")
    }
    return structs.replace(
        one,
        **shared,
        **both,
        head_dims=one.head_dims or other.head_dims,
        max_head_dim=min(one.max_head_dim, other.max_head_dim),
    )


KINDS: Final = {
    **_ALONE,
    **{
        kind.name: kind
        for kind in (
            _pair("fa3", "flashinfer"),
            _pair("flashinfer", "trtllm_mha"),
            _pair("fa3_mla", "flashmla"),
            _pair("flashinfer_mla", "trtllm_mla"),
        )
    },
}
"""All kinds, by name."""


def capability_of(name: str, version: Version) -> Capability:
    """Return the cases that a version's backend of this kind supports: those in modes with an order of events."""
    kind, orders = KINDS[name], orders_of(version)
    can = kind.capability
    for first, fields in kind.since.items():
        if version >= first:
            can = structs.replace(can, **fields)
    modes = [mode for mode in can.modes if mode in orders.eager and (kind.drafts or mode is not Mode.DRAFT_DECODE)]
    graphs = [mode for mode in can.graph_modes if mode in orders.graphs]
    if version < kind.captured_v2:
        graphs = [mode for mode in graphs if mode is not Mode.DRAFT_EXTEND_V2]
    return structs.replace(can, modes=tuple(modes), graph_modes=tuple(graphs))
