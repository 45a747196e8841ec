"""Multi-head latent attention on TRT-LLM's kernels, as a serving engine drives them.

Decode, verify and draft extend attend to the latents in the paged cache; prefill attends to keys and values projected
from them: causally to its own tokens, then to the prefix in chunks, merged one after another. The ragged kernel leaves
rows without keys unwritten, so a chunk in which some request has none is fixed up before it is merged (SGLang PR
#22688). Draft extends are padded to a uniform stride; capture and replay agree on it (SGLang PR #21987).
"""

import math
from dataclasses import dataclass, replace

import torch

from attnfuzz.kernels.backend import Attended, Bench, Fill, Graph, Output
from attnfuzz.kernels.ops_table import OpsTable
from attnfuzz.kernels.page_table import PageTable
from attnfuzz.kernels.paged_kv import PagedKv
from attnfuzz.kernels.queries import draw_queries, packed_rows, place_queries
from attnfuzz.kernels.trtllm.gather import GATHER_ROWS
from attnfuzz.kernels.trtllm.plan import Row, longest, table_rows
from attnfuzz.kernels.trtllm.prefill import MlaPrefill
from attnfuzz.kernels.trtllm.workspace import SharedWorkspace
from attnfuzz.reference.case import Case, Launch, Mode, Step

_TABLE_MULTIPLE_TOKENS = 128
"""SGLang pads MLA page tables to whole blocks of 128 tokens."""


@dataclass(frozen=True)
class DecodePlan:
    """What the decode kernel is told: seq_lens [batch] and block_tables [batch, width], int32, and a stated maximum."""

    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    max_seq_len: int


@dataclass(frozen=True)
class Captured:
    """A graph and the static tensors that it reads and writes; query is [batch, stride, heads, rank + rope]."""

    graph: Graph
    plan: DecodePlan
    query: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


class MlaSession:
    """A server's latent attention layer over one case. Revisions override `replay_stride` and `needs_fixup`."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        geometry = case.geometry
        assert geometry.latent is not None
        self._ops, self._case, self._bench, self._latent = ops, case, bench, geometry.latent
        self._kv = PagedKv(case, bench)
        self._table = PageTable(case, self._kv)
        self._workspace = SharedWorkspace(case, bench)
        self._prefill = MlaPrefill(ops, case, bench, self._workspace)
        # The softmax scale is that of the per-head keys, which the latents stand for.
        self._scales = {
            "bmm1_scale": case.scales.softmax * case.scales.k / math.sqrt(geometry.latent.nope + geometry.latent.rope),
            "bmm2_scale": case.scales.v,
        }
        self._captured: dict[tuple[Mode, int], Captured] = {}
        self._static: DecodePlan | None = None

    def replay_stride(self, step: Step) -> int:
        """The query stride that a replay plans lengths for: the one that was captured."""
        return step.tokens_per_request

    def needs_fixup(self, has_zero_kv: bool) -> bool:
        """Whether a chunk is fixed up before it is merged."""
        return has_zero_kv

    def forward(self, index: int) -> Output | None:
        """Run one step; None for a capture."""
        step = self._case.steps[index]
        if step.launch is Launch.CAPTURE:
            self._capture(step)
            return None
        if not step.mode.speculative:
            return self._prefill.forward(index, self.needs_fixup)
        self._kv.write(step, rejected_drafts=step.mode is Mode.DRAFT_EXTEND)
        if step.launch is Launch.REPLAY:
            return self._replay(index, step)
        if step.mode in (Mode.DRAFT_EXTEND, Mode.DRAFT_EXTEND_V2):
            return self._draft_extend(index, step)
        return self._uniform(index, step)

    def _uniform(self, index: int, step: Step) -> Output:
        """Decode and verify: planned after padding, every request with the same number of queries."""
        rows, stride = Row.padded(step), step.tokens_per_request
        queries = self._draw(index, step.padded_tokens)
        query = place_queries(self._case, self._bench, "query", queries)
        out, lse = self._outputs(step.padded_tokens)
        covered = len(rows) * stride
        self._decode(self._plan(rows), query[:covered].unflatten(0, (len(rows), stride)), out[:covered], lse[:covered])
        return self._output(step, covered, query, out, lse, packed_rows(step))

    def _draft_extend(self, index: int, step: Step) -> Output:
        """Draft extend: planned before padding, ragged queries spread to the longest one's stride and gathered again."""
        rows = pad_queries(Row.real(step), longest(request.q_len for request in step.requests))
        stride = rows[0].q_len
        queries = place_queries(self._case, self._bench, "query", self._draw(index, step.padded_tokens))
        rows_of = [b * stride + i for b, request in enumerate(step.requests) for i in range(request.q_len)]
        at = self._bench.memory.copy("gathered_rows", torch.tensor(rows_of, dtype=torch.long))
        shape = (len(rows) * stride, *queries.shape[1:])
        spread = self._bench.memory.tensor("padded_query", shape, queries.dtype, fill=Fill.ZEROS)
        spread[at] = queries[: step.tokens]
        wide_out, wide_lse = self._outputs(shape[0], "padded_")
        self._decode(self._plan(rows), spread.unflatten(0, (len(rows), stride)), wide_out, wide_lse)
        out, lse = self._outputs(step.padded_tokens)
        for narrow, wide in ((out, wide_out), (lse, wide_lse)):
            self._bench.launcher.launch(GATHER_ROWS, out=narrow[: step.tokens], source=wide, rows=at)
        return self._output(step, step.tokens, queries, out, lse, packed_rows(step))

    def _decode(self, plan: DecodePlan, query: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
        batch, stride, heads, _ = query.shape
        need = self._ops.decode_workspace(
            batch=batch,
            q_len=stride,
            q_heads=heads,
            kv_heads=1,
            head_dim_vo=self._latent.rank,
            max_seq_len=plan.max_seq_len,
        )
        self._bench.launcher.launch(
            self._ops.mla_decode,
            query=query,
            kv_cache=self._kv.cache,
            workspace_buffer=self._workspace.take(need),
            qk_nope_head_dim=self._latent.nope,
            kv_lora_rank=self._latent.rank,
            qk_rope_head_dim=self._latent.rope,
            block_tables=plan.block_tables,
            seq_lens=plan.seq_lens,
            max_seq_len=plan.max_seq_len,
            out=out.unflatten(0, (batch, stride)),
            lse=lse,
            return_lse=True,
            **self._scales,
        )

    def _draw(self, index: int, rows: int) -> torch.Tensor:
        return draw_queries(self._case, index, rows, self._case.geometry.head_dim_qk)

    def _outputs(self, rows: int, prefix: str = "") -> tuple[torch.Tensor, torch.Tensor]:
        geometry, memory = self._case.geometry, self._bench.memory
        shape = (rows, geometry.q_heads, geometry.head_dim_vo)
        out = memory.tensor(f"{prefix}out", shape, geometry.dtype.torch_dtype, fill=Fill.OUTPUT)
        return out, memory.tensor(f"{prefix}lse", shape[:2], torch.float32, fill=Fill.OUTPUT)

    def _width(self, length: int) -> int:
        return self._table.width(length, multiple=max(1, _TABLE_MULTIPLE_TOKENS // self._kv.page_size))

    def _plan(self, rows: list[Row]) -> DecodePlan:
        kv_lens = [row.kv_len for row in rows]
        table = table_rows(self._table, rows, self._width(longest(kv_lens)))
        return DecodePlan(
            seq_lens=self._bench.memory.copy("seq_lens", torch.tensor(kv_lens, dtype=torch.int32)),
            block_tables=self._table.place(self._bench, table),
            max_seq_len=longest(kv_lens) + self._case.max_len_slack,
        )

    def _output(
        self, step: Step, covered: int, query: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, firsts: list[int]
    ) -> Output:
        out[covered:].zero_()
        lse[covered:].fill_(-math.inf)
        attended = tuple(
            Attended(
                first_row=first,
                query=query[first : first + request.q_len],
                key=self._kv.tokens.keys(request.slot, request.kv_len),
                value=self._kv.tokens.values(request.slot, request.kv_len),
            )
            for first, request in zip(firsts, step.requests, strict=True)
        )
        return Output(out=out, lse=lse, attended=attended, **self._scales)

    def _static_plan(self) -> DecodePlan:
        """Static metadata for the largest bucket, which every graph of the session slices."""
        if self._static is None:
            captures = [step for step in self._case.steps if step.launch is Launch.CAPTURE]
            batch = max(step.padded_batch for step in captures)
            context = longest(row.kv_len for step in self._case.steps for row in self._replayed_rows(step))
            memory = self._bench.memory
            table = torch.full((batch, self._width(context)), -1, dtype=torch.int32)
            self._static = DecodePlan(
                seq_lens=memory.tensor("seq_lens", (batch,), torch.int32, fill=Fill.ZEROS),
                block_tables=memory.copy("block_tables", table),
                max_seq_len=context + self._case.max_len_slack,
            )
        return self._static

    def _replayed_rows(self, step: Step) -> list[Row]:
        rows = Row.padded(step)
        return pad_queries(rows, step.tokens_per_request) if step.mode.speculative else rows

    def _capture(self, step: Step) -> None:
        static, batch, stride = self._static_plan(), step.padded_batch, step.tokens_per_request
        plan = replace(static, seq_lens=static.seq_lens[:batch], block_tables=static.block_tables[:batch])
        geometry = self._case.geometry
        blank = torch.zeros(step.padded_tokens, geometry.q_heads, geometry.head_dim_qk, dtype=geometry.dtype.torch_dtype)
        query = place_queries(self._case, self._bench, "query", blank)
        out, lse = self._outputs(step.padded_tokens)
        with self._bench.launcher.capture() as graph:
            self._decode(plan, query.unflatten(0, (batch, stride)), out, lse)
        self._captured[step.mode, step.padded_tokens] = Captured(graph, plan, query, out, lse)

    def _replay(self, index: int, step: Step) -> Output:
        """Replay a graph. Queries lie at the captured stride, also where a request accepted fewer tokens."""
        captured, stride = self._captured[step.mode, step.padded_tokens], step.tokens_per_request
        rows = pad_queries(Row.padded(step), self.replay_stride(step))
        captured.plan.seq_lens.copy_(torch.tensor([row.kv_len for row in rows]))
        captured.plan.block_tables.copy_(table_rows(self._table, rows, captured.plan.block_tables.shape[1]))
        captured.query.copy_(self._draw(index, step.padded_tokens))
        for tensor in (captured.out, captured.lse):
            self._bench.memory.renew(tensor)
        captured.graph.replay()
        firsts = [b * stride for b in range(len(step.requests))]
        return self._output(step, step.padded_tokens, captured.query, captured.out, captured.lse, firsts)


def pad_queries(rows: list[Row], stride: int) -> list[Row]:
    """Rows whose queries are padded to `stride`: the kernel aligns the last query to the last key, so the length grows."""
    return [replace(row, q_len=stride, kv_len=row.kv_len - row.q_len + stride) for row in rows]
