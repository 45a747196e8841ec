"""How large a workspace a server has to have: as large as its kernels need, since what is guarded costs time."""

from attnfuzz.kernels.native.ops import workspace_bytes
from attnfuzz.reference.case import Case, Step

ON_A_GPU = 32 << 20
"""Bytes, where a server has 128 MiB to 512. XQA's partial results take some MiB of it in any geometry that is drawn
(attnfuzz.kernels.gpu.direct.xqa), and its semaphores, which 0.5.23 adds to it, 8; the others take nothing.
"""

_LONGER_THAN_ANY = 1 << 30
"""Keys: as many splits as there can be."""


def native_workspace(case: Case) -> int:
    """Bytes that are enough for whatever a release makes of the query rows of a step, right or wrong.

    Partial results take the same for each query row, however many of them are taken for a request.
    """
    geometry = case.geometry
    return workspace_bytes(
        batch=1,
        q_len=max(1, *map(_decoded_rows, case.steps)),
        q_heads=geometry.q_heads,
        kv_heads=1,
        head_dim_vo=geometry.head_dim_vo,
        max_seq_len=_LONGER_THAN_ANY,
    ).total


def _decoded_rows(step: Step) -> int:
    """No fewer rows than a step may hand to the decode kernel."""
    if step.mode.speculative:
        # MLA pads a ragged step to the longest of its requests, and padding is rounded up to a whole request.
        return step.padded_tokens + max(step.padded_batch, len(step.requests)) * step.tokens_per_request
    # Of a prefill the requests with one token (0.5.23 trtllm_mha_backend.py, forward_extend), and padding as such.
    return len(step.requests) + step.padded_tokens - step.tokens
