"""FlashInfer's entry points on Blackwell, where TRT-LLM's generated kernels (trtllm-gen) are behind them."""

from typing import Final

from attnfuzz.kernels.gpu.fixup import FIXUP
from attnfuzz.kernels.gpu.flashinfer_op import flashinfer_op
from attnfuzz.kernels.gpu.merge import MERGE_STATE_IN_PLACE
from attnfuzz.kernels.ops_table import OpsTable, WorkspaceBytes

_WITH_COUNTERS: Final = frozenset({"out", "lse", "workspace_buffer", "multi_ctas_kv_counter_buffer"})

_WORKSPACE: Final = WorkspaceBytes(semaphores=256 << 20, scratch=0)
"""What FlashInfer's tests hand over: 256 MiB that "must be zero initialized" (tests/attention/
test_trtllm_gen_attention.py). No function says how much a call uses, so that none of it may be garbage at first use."""


def _workspace(
    *, batch: int, q_len: int, q_heads: int, kv_heads: int, head_dim_vo: int, max_seq_len: int
) -> WorkspaceBytes:
    del batch, q_len, q_heads, kv_heads, head_dim_vo, max_seq_len
    return _WORKSPACE


BLACKWELL: Final = OpsTable(
    decode=flashinfer_op("flashinfer.decode", "trtllm_batch_decode_with_kv_cache", _WITH_COUNTERS),
    context=flashinfer_op("flashinfer.prefill", "trtllm_batch_context_with_kv_cache", _WITH_COUNTERS),
    ragged=flashinfer_op(
        "flashinfer.prefill", "trtllm_ragged_attention_deepseek", frozenset({"out", "lse", "workspace_buffer"})
    ),
    mla_decode=flashinfer_op("flashinfer.mla", "trtllm_batch_decode_with_kv_cache_mla", _WITH_COUNTERS),
    merge_state_in_place=MERGE_STATE_IN_PLACE,
    fixup=FIXUP,
    decode_workspace=_workspace,
    prefill_workspace=_WORKSPACE,
    # GpuBackend.prepare compiles.
    prepare=lambda _: None,
)
