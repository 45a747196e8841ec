"""Stands for a kernel that takes the last slot from the length of the last page: a full page gives slot -1."""

import torch
from small_cases import run

from attnfuzz import FunctionBackend
from attnfuzz.harness.sandbox.case_runner import OneByOne
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference.case import Case


def _keys(cache: torch.Tensor, pages: torch.Tensor, kv_len: int) -> torch.Tensor:
    """Return a request's keys or values [kv_len, kv_heads, dim] from `cache` [pages, page_size, kv_heads, dim]."""
    pages_of_keys, size = cache.flatten(0, 1), cache.shape[1]
    slots = torch.arange(kv_len)
    places = pages[slots // size].long() * size + slots % size
    if size > 1:
        places[-1] = pages[-1] * size + kv_len % size - 1
    return pages_of_keys[places]


def attend(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    scale: float,
    **_: object,
) -> None:
    """Attend causally, as docs/examples/my_backend.py, but with one wrong slot."""
    for b, kv_len in enumerate(seq_lens.tolist()):
        rows = slice(*cum_seq_lens_q[b : b + 2].tolist())
        pages = block_tables[b, : -(-kv_len // k_cache.shape[1])]
        group = query.shape[1] // k_cache.shape[2]
        q = query[rows].float()
        if not kv_len or not len(q):
            out[rows] = 0
            continue
        k, v = (_keys(cache, pages, kv_len).float().repeat_interleave(group, 1) for cache in (k_cache, v_cache))
        logits = torch.einsum("qhd,khd->hqk", q, k) * scale
        seen = torch.ones_like(logits, dtype=torch.bool).tril(kv_len - len(q))
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, v)


LAST_SLOT = FunctionBackend(attend)


class LastSlot(OneByOne):
    """Judges cases of this kernel in this process."""

    def verdict(self, case: Case) -> Verdict:
        """Run a case."""
        return run(case, LAST_SLOT)

    def renew(self) -> None:
        """Go on: the kernel leaves nothing behind."""
