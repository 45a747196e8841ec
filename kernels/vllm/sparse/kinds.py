"""The kinds of planners of sparse attention, by the name of vLLM's backend in lower case."""

from dataclasses import dataclass
from typing import Final

from msgspec import structs

from attnfuzz.kernels.vllm.kinds import BLACKWELL, HOPPER
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import KvFormat, ListOrder, SparseOp, Tail

INDEXER: Final = SparseCapability(
    chains=((SparseOp.WRITE, SparseOp.LOGITS, SparseOp.TOP_K),),
    page_sizes=(64,),
    index_dims=(128,),
    powers=(True,),
    ragged=(False,),
    gaps=False,
    longest=1 << 14,
    patience=4.0,
)
"""The capability of the indexer: pages of 64 and keys of 128 (0.33.0: v1/attention/backends/mla/indexer.py:263)."""


SLOT_LISTS: Final = SparseCapability(
    chains=((SparseOp.TRANSFORM,),),
    page_sizes=(64,),
    top_ks=(128, 256, 512),
    ragged=(False,),
    orders=(ListOrder.RECENT, ListOrder.SHUFFLED, ListOrder.REPEATED),
    gaps=False,
    longest=1 << 14,
    patience=4.0,
)
"""The capability of the conversion of lists: their lengths are multiples of 128 (sparse_utils.py, BLOCK_N).

It moves -1 behind the slots, so that lists with -1 between, which no top-k makes, have another order.
"""


ATTENDED: Final = structs.replace(
    SLOT_LISTS,
    chains=((SparseOp.TRANSFORM, SparseOp.ATTENTION),),
    formats=(KvFormat.LATENT, KvFormat.PACKED),
    # From 32 heads on, packed latents of prefills are unpacked first (flashmla_sparse.py:74).
    heads=(1, 2, 8, 32),
    dims=((576, 512),),
    sinks=(False,),
    seconds=(False,),
    counts=(False,),
    tails=(Tail.MINUS_ONE,),
    longest=1 << 12,
)
"""The capability of the attention to these lists."""

_ON_LATENTS: Final = structs.replace(ATTENDED, formats=(KvFormat.LATENT,))
"""The same, without packed latents."""


@dataclass(frozen=True)
class SparseKind:
    """A kind of planner: its `module` in vLLM with its metadata `builder`, the module of its `layer`, and its cases.

    `attention` is the class in `module` that attends to lists, if cases do. It expects a GPU with the compute
    capability `gpu`.
    """

    module: str
    builder: str
    layer: str
    capability: SparseCapability
    gpu: tuple[int, int] = HOPPER
    attention: str = ""
    on_cpu = False

    @property
    def class_names(self) -> dict[str, str]:
        """The names of its classes, by role."""
        return {"MetadataBuilder": self.builder}


SPARSE_KINDS: Final = {
    "indexer": SparseKind(
        module="vllm.v1.attention.backends.mla.indexer",
        builder="DeepseekV32IndexerMetadataBuilder",
        layer="vllm.model_executor.layers.sparse_attn_indexer",
        capability=INDEXER,
    ),
    "flashmla_sparse": SparseKind(
        module="vllm.v1.attention.backends.mla.flashmla_sparse",
        builder="FlashMLASparseMetadataBuilder",
        layer="vllm.v1.attention.backends.mla.sparse_utils",
        capability=SLOT_LISTS,
    ),
    "flashmla_sparse_attention": SparseKind(
        module="vllm.v1.attention.backends.mla.flashmla_sparse",
        builder="FlashMLASparseMetadataBuilder",
        layer="vllm.v1.attention.backends.mla.sparse_utils",
        capability=ATTENDED,
        attention="FlashMLASparseImpl",
    ),
    "flash_attn_mla_sparse": SparseKind(
        module="vllm.v1.attention.backends.mla.flashattn_mla_sparse",
        builder="FlashAttnMLASparseMetadataBuilder",
        layer="vllm.v1.attention.backends.mla.sparse_utils",
        capability=_ON_LATENTS,
        attention="FlashAttnMLASparseImpl",
    ),
    "flashinfer_mla_sparse": SparseKind(
        module="vllm.v1.attention.backends.mla.flashinfer_mla_sparse",
        builder="FlashInferMLASparseTRTLLMMetadataBuilder",
        layer="vllm.v1.attention.backends.mla.sparse_utils",
        capability=_ON_LATENTS,
        gpu=BLACKWELL,
        attention="FlashInferMLASparseImpl",
    ),
}
