"""Decode and verify on a paged KV cache whose keys are split: parts are merged by their log-sum-exp."""

import math

import torch


class Planner:
    """Plans a step, and runs it on each layer. A split has `split` keys."""

    def __init__(self, split: int = 48) -> None:
        self.split = split
        self.workspace = torch.zeros(0)
        self.work: list[tuple[int, int, int]] = []

    def plan(self, qo_indptr: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor, page_size: int) -> None:
        """Lay out the splits of each request, as (request, first key, last key), and its pages in a flat list."""
        self.page_size = page_size
        lens = seq_lens.tolist()
        self.indptr, self.indices, self.last_page_len = [0], [], []
        for b, n in enumerate(lens):
            pages = -(-n // page_size)
            self.indices += block_tables[b, :pages].tolist()
            self.indptr.append(len(self.indices))
            self.last_page_len.append(n - (pages - 1) * page_size if n else 0)
        self.qo_indptr = qo_indptr.tolist()
        self.work = [
            (b, start, min(start + self.split, n))
            for b, n in enumerate(lens)
            for start in range(0, max(n, 1), self.split)
        ]

    def run(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        sm_scale: float,
        window_left: int = -1,
        soft_cap: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return out [tokens, heads, dim] in the dtype of q, and the LSE [tokens, heads] in base 2."""
        (tokens, heads), kv_heads = q.shape[:2], k_cache.shape[2]
        group = heads // kv_heads
        requests = [b for b, _, _ in self.work]
        splits = max(map(requests.count, requests), default=1)
        need = splits * tokens * heads * (v_cache.shape[-1] + 1)
        if self.workspace.numel() < need:
            self.workspace = torch.zeros(need)
        space = self.workspace[:need].view(splits, tokens, heads, -1)
        space[..., :-1] = 0
        space[..., -1] = -math.inf
        for at, (b, first, last) in enumerate(self.work):
            r0, r1, n = self.qo_indptr[b], self.qo_indptr[b + 1], self.kv_len(b)
            if r0 == r1 or n == 0:
                continue
            pages = torch.tensor(self.indices[self.indptr[b] : self.indptr[b + 1]], dtype=torch.long)
            pos = torch.arange(first, last)
            rows = pages[pos // self.page_size], pos % self.page_size
            hq = torch.arange(heads) // group
            k, v = k_cache[rows].float()[:, hq], v_cache[rows].float()[:, hq]
            logits = torch.einsum("qhd,khd->qhk", q[r0:r1].float(), k) * sm_scale
            if soft_cap:
                logits = soft_cap * torch.tanh(logits / soft_cap)
            qpos = torch.arange(r1 - r0) + n - (r1 - r0)
            ok = pos[None] <= qpos[:, None]
            if window_left >= 0:
                ok &= pos[None] >= qpos[:, None] - window_left
            logits = logits.masked_fill(~ok[:, None], -math.inf)
            top = logits.amax(-1).nan_to_num(neginf=0)
            p = torch.exp(logits - top[..., None])
            total = p.sum(-1)
            part = space[requests[:at].count(b), r0:r1]
            part[..., :-1] = torch.einsum("qhk,khd->qhd", p, v) / total.clamp_min(1e-30)[..., None]
            part[..., -1] = top + torch.log(total)
        return self.merge(space, q.dtype)

    def kv_len(self, b: int) -> int:
        """Return the number of keys of a request."""
        pages = self.indptr[b + 1] - self.indptr[b]
        return (pages - 1) * self.page_size + self.last_page_len[b] if pages else 0

    @staticmethod
    def merge(space: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Merge the parts [splits, tokens, heads, dim + 1], each with its LSE in base e at the end."""
        lse = space[..., -1]
        top = lse.amax(0).nan_to_num(neginf=0)
        w = torch.exp(lse - top)
        total = w.sum(0)
        out = (w[..., None] * space[..., :-1]).sum(0) / total.clamp_min(1e-30)[..., None]
        return out.to(dtype), (top + torch.log(total)) / math.log(2)
