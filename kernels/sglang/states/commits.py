"""Committing the states of accepted drafts after a verify, as a release's speculative worker does."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final

import torch

from attnfuzz.kernels.sglang.states.server import StateServer

_UTILS: Final = "sglang.srt.speculative.spec_utils"


def commit(server: StateServer, batch: Any, accepted: Sequence[int], drafts: int) -> None:
    """Commit the state after the accepted tokens of each request of a verify of `drafts` tokens of each.

    Before 0.5.14, EagleWorker's method computed the steps of a chain from these counts (0.5.9:
    speculative/eagle_worker.py:831).
    """
    device = server.bench.device
    lengths = torch.tensor(accepted, dtype=torch.int32, device=device)
    commits = getattr(server.loaded.module(_UTILS), "commit_mamba_states_after_verify", None)
    if commits is None:
        server.backend.update_mamba_state_after_mtp_verify(lengths.long() - 1, None, None, server.model_runner.model)
        return
    # The chain's accepted tokens of all requests, in the verified batch, and -1 (speculative/eagle_utils.py).
    tokens = torch.arange(drafts, device=device)
    first = torch.arange(len(accepted), device=device).unsqueeze(1) * drafts
    chain = torch.where(tokens < lengths.unsqueeze(1), first + tokens, -1)
    commits(
        SimpleNamespace(model_runner=server.model_runner),
        SimpleNamespace(
            forward_mode=batch.forward_mode,
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            # Without --mamba-scheduler-strategy extra_buffer.
            mamba_track_indices=None,
            mamba_track_mask=None,
        ),
        lengths,
        chain.int(),
        drafts,
    )
