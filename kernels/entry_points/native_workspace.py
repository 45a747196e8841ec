"""What the native kernels use of a workspace, if they can be asked."""

from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import workspace_bytes
from attnfuzz.kernels.ops_table import WorkspaceBytes

_LONGEST = 1 << 31
"""No stated maximum that is larger changes what a native kernel uses; a recorded one may be any integer."""


def native_workspace(
    *, batch: int, q_len: int | None, q_heads: int, kv_heads: int, head_dim_vo: int, max_seq_len: int
) -> WorkspaceBytes | None:
    """Of a decode; None where no compiler is, or q lengths differ."""
    if q_len is None or build.missing() is not None:
        return None
    return workspace_bytes(
        batch=batch,
        q_len=q_len,
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim_vo=head_dim_vo,
        max_seq_len=max(0, min(max_seq_len, _LONGEST)),
    )
