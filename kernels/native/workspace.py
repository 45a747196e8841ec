"""How much workspace the native decode kernels use, and which part of it must be zero."""

from attnfuzz.kernels.native import build
from attnfuzz.kernels.ops_table import WorkspaceBytes


def workspace_bytes(
    *, batch: int, q_len: int, q_heads: int, kv_heads: int, head_dim_vo: int, max_seq_len: int
) -> WorkspaceBytes:
    """What one decode call uses, given the batch that it derives from its query rows and the stated maximum length.

    For MLA, `kv_heads` is 1 and `head_dim_vo` the rank. The semaphores have the same size for every call, so that a
    workspace for several calls needs the largest of their scratch.
    """
    module = build.load()
    scratch = module.scratch_bytes(batch, q_len, q_heads, kv_heads, head_dim_vo, max_seq_len)
    return WorkspaceBytes(module.semaphore_bytes(), scratch)
