"""Sessions on keys and values that lie packed, one request behind the other, for kernels that know no pages."""

from dataclasses import dataclass

import torch

from attnfuzz.kernels.backend import Bench, Output
from attnfuzz.kernels.lengths import longest, place_int32, running_sum
from attnfuzz.kernels.queries import cached_scales, draw_queries, packed_rows, place_queries
from attnfuzz.kernels.results import Results
from attnfuzz.kernels.slot_tokens import SlotTokens
from attnfuzz.reference.case import Case


@dataclass(frozen=True)
class Packed:
    """A batch: query [tokens, q_heads, head_dim_qk] in guarded memory, int32 metadata, and what it attends to.

    seq_lens [batch]; cumulative lengths [batch + 1]; key [kv tokens, kv_heads, head_dim_qk] and value [kv tokens,
    kv_heads, head_dim_vo] are still on the CPU, for a backend places them as its layout wants.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    seq_lens: torch.Tensor
    cum_seq_lens_q: torch.Tensor
    cum_seq_lens_kv: torch.Tensor
    max_q_len: int
    max_kv_len: int

    @property
    def batch(self) -> int:
        """Requests."""
        return self.seq_lens.shape[0]


class PackedSession:
    """Plans each step before padding, and clears the rows behind its plan. Subclasses launch in `_attend`."""

    returns_lse = False

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case, self._bench = case, bench
        self._tokens = SlotTokens.cached(case, device=bench.device)
        self._sinks: torch.Tensor | None = None
        self._scales = cached_scales(case, case.geometry.head_dim_qk)

    def forward(self, index: int) -> Output:
        """Run one step."""
        case, bench, step = self._case, self._bench, self._case.steps[index]
        geometry, requests = case.geometry, step.requests
        query = place_queries(case, bench, draw_queries(case, index, step.padded_tokens, geometry.head_dim_qk))
        results = Results.place(case, bench, step.padded_tokens, geometry.head_dim_vo)
        q_lens, kv_lens = [request.q_len for request in requests], [request.kv_len for request in requests]
        key, value = self._tokens.packed(step)
        packed = Packed(
            query=query[: step.tokens],
            key=key,
            value=value,
            seq_lens=place_int32(bench, "seq_lens", kv_lens),
            cum_seq_lens_q=place_int32(bench, "cum_seq_lens_q", running_sum(q_lens)),
            cum_seq_lens_kv=place_int32(bench, "cum_seq_lens_kv", running_sum(kv_lens)),
            max_q_len=longest(q_lens) + case.max_len_slack,
            max_kv_len=longest(kv_lens) + case.max_len_slack,
        )
        self._attend(packed, results[: step.tokens])
        results[step.tokens :].clear()
        return Output(
            out=results.out,
            lse=results.lse if self.returns_lse else None,
            attended=self._tokens.attended(step, query, packed_rows(step)),
            sinks=self._sinks,
            **self._scales,
        )

    def _attend(self, packed: Packed, results: Results) -> None:
        """Launch, writing one row of `results` for each query."""
        raise NotImplementedError
