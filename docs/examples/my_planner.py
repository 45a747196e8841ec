"""A kernel that plans, with a mistake: it keeps its plan while it gets the same tensors, which may hold another batch.

attnfuzz fuzz --backend docs/examples/my_planner.py:PLANNER
"""

import torch

from attnfuzz import Capability, EarlierUse, FunctionBackend


class Planner:
    """The rows and pages of each request, read once for the tensors that have them."""

    def __init__(self):
        self.lengths, self.requests = None, []

    def plan(self, block_tables, seq_lens, cum_seq_lens_q, page_size):
        """Plan a batch, unless its lengths are in the tensor of the last plan."""
        if seq_lens is self.lengths:
            return
        self.lengths, self.requests = seq_lens, []
        for b, length in enumerate(seq_lens.tolist()):
            rows = slice(*cum_seq_lens_q[b : b + 2].tolist())
            self.requests.append((rows, block_tables[b, : -(-length // page_size)].tolist(), length))


PLANS = Planner()


def attend(*, out, query, k_cache, v_cache, block_tables, seq_lens, cum_seq_lens_q, scale, **_):
    """Attend causally to the pages of each planned request."""
    PLANS.plan(block_tables, seq_lens, cum_seq_lens_q, k_cache.shape[1])
    for rows, pages, length in PLANS.requests:
        key, value = (cache[pages].flatten(0, 1)[:length].float() for cache in (k_cache, v_cache))
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
        logits = torch.einsum("qhd,khd->hqk", query[rows].float(), key) * scale
        seen = torch.ones_like(logits, dtype=torch.bool).tril(length - logits.shape[1])
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, value).to(out.dtype)


PLANNER = FunctionBackend(
    attend,
    capability=Capability(
        earlier_uses=(EarlierUse.PLANNED_FEWER, EarlierUse.PLANNED_MORE, EarlierUse.REUSED_TENSORS),
    ),
)
