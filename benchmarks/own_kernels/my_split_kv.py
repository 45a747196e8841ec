"""split_kv.py as a backend."""

import torch
from split_kv import Planner  # type: ignore[import-not-found]

from attnfuzz import Capability, Contract, FunctionBackend, LseBase, Mode, NoiseModel

planner = Planner()


def split_decode(
    *,
    out: torch.Tensor,
    lse: torch.Tensor,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    scale: float,
    window_left: int,
    soft_cap: float,
) -> None:
    """Plan the step, and run it."""
    planner.plan(cum_seq_lens_q, block_tables, seq_lens, k_cache.shape[1])
    o, logsumexp = planner.run(query, k_cache, v_cache, scale, window_left, soft_cap)
    out.copy_(o)
    lse.copy_(logsumexp)


MINE = FunctionBackend(
    split_decode,
    Capability(modes=(Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND), windows=True, soft_cap=True),
    Contract(lse=LseBase.TWO),
    noise_model=NoiseModel.fp32_arithmetic(),
)
