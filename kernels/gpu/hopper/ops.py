"""TRT-LLM's kernels that FlashInfer has for Hopper: XQA for decode, and fmha_v2 for context."""

from typing import Final

import torch

from attnfuzz.kernels.gpu import fmha_v2, xqa
from attnfuzz.kernels.gpu.fixup import FIXUP
from attnfuzz.kernels.gpu.flashinfer_op import flashinfer_op
from attnfuzz.kernels.gpu.merge import MERGE_STATE_IN_PLACE
from attnfuzz.kernels.gpu.mla_wrapper import MLA_RUN
from attnfuzz.kernels.gpu.processors import processors
from attnfuzz.kernels.gpu.wrappers.ragged import FA3_RAGGED
from attnfuzz.kernels.ops_table import OpsTable, WorkspaceBytes


def _xqa_workspace(
    *, batch: int, q_len: int, q_heads: int, kv_heads: int, head_dim_vo: int, max_seq_len: int
) -> WorkspaceBytes:
    """XQA splits by how many multiprocessors there are, and not by the stated maximum."""
    del max_seq_len
    return xqa.workspace_bytes(
        batch=batch,
        q_len=q_len,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=head_dim_vo,
        processors=processors(torch.device("cuda", 0)),
    )


_WRITES: Final = frozenset({"out", "workspace_buffer"})

HOPPER: Final = OpsTable(
    decode=flashinfer_op("flashinfer.decode", "trtllm_batch_decode_with_kv_cache", _WRITES),
    context=fmha_v2.FMHA_V2_OP,
    ragged=FA3_RAGGED.run_op,
    mla_decode=MLA_RUN,
    merge_state_in_place=MERGE_STATE_IN_PLACE,
    fixup=FIXUP,
    decode_workspace=_xqa_workspace,
    prefill_workspace=fmha_v2.WORKSPACE,
    # GpuBackend.prepare compiles.
    prepare=lambda _: None,
)
