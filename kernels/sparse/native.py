"""The native kernels of sparse attention as a backend that runs any of the ops of a step, or all of them."""

from typing import Final

from attnfuzz.kernels.native import build, sparse_ops
from attnfuzz.kernels.sparse.backend import SparseBackend
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import CHAIN, SparseOp

SPARSE: Final = SparseBackend(
    label="native:sparse",
    functions={
        "save_states": sparse_ops.save_partial_states,
        "compress": sparse_ops.compress_norm_rope_store_indexer,
        "write": sparse_ops.indexer_k_quant_and_cache,
        "logits": sparse_ops.fp8_mqa_logits,
        "paged_logits": sparse_ops.fp8_paged_mqa_logits,
        "top_k": sparse_ops.top_k_per_row,
        "slots": sparse_ops.convert_positions_to_slots,
        "offsets": sparse_ops.convert_positions_to_offsets,
        "attention": sparse_ops.sparse_attention,
    },
    capability=SparseCapability(chains=(CHAIN, CHAIN[1:], CHAIN[2:4], *((op,) for op in SparseOp))),
    contract=Contract(lse=LseBase.TWO),
    noise_models=dict.fromkeys((DType.FLOAT8_E4M3, DType.BFLOAT16), NoiseModel.fp32_arithmetic()),
    load=build.load,
    why_not=build.missing,
)


def backends() -> tuple[SparseBackend, ...]:
    """Return the backend."""
    return (SPARSE,)
