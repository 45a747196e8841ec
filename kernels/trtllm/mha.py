"""Multi-head attention on TRT-LLM's decode and context kernels, as a serving engine drives them.

Decode and verify are planned after padding and run on the decode kernel, which takes its batch from the query rows.
Draft extends and prefills are planned before padding and run on the context kernel, which is told its batch: the
planned one, whatever was padded since (SGLang PR #21649). Graphs keep metadata in static buffers of the largest bucket.
"""

import math
from dataclasses import dataclass

import torch

from attnfuzz.kernels.backend import Attended, Bench, Fill, Graph, Output
from attnfuzz.kernels.ops_table import OpsTable
from attnfuzz.kernels.page_table import PageTable
from attnfuzz.kernels.paged_kv import PagedKv
from attnfuzz.kernels.queries import draw_queries, packed_rows, place_queries, running_sum
from attnfuzz.kernels.trtllm.plan import Plan, Row, longest, plan_rows, table_rows
from attnfuzz.kernels.trtllm.sinks import place_sinks
from attnfuzz.kernels.trtllm.workspace import SharedWorkspace
from attnfuzz.reference.case import Case, Launch, Mode, Step

DECODE_KERNEL_MODES = frozenset({Mode.DECODE, Mode.TARGET_VERIFY})
"""The modes that the fixed backend sends to the decode kernel (SGLang PR #24856)."""


@dataclass(frozen=True)
class Captured:
    """A graph and the static tensors that it reads and writes."""

    graph: Graph
    plan: Plan
    query: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


class MhaSession:
    """A server's attention layer over one case. Revisions override the two methods that route and size a launch."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        geometry = case.geometry
        self._ops, self._case, self._bench = ops, case, bench
        self._kv = PagedKv(case, bench)
        self._table = PageTable(case, self._kv)
        self._workspace = SharedWorkspace(case, bench)
        self._sinks = place_sinks(case, bench)
        self._scales = {
            "bmm1_scale": case.scales.softmax * case.scales.k / math.sqrt(geometry.head_dim_qk),
            "bmm2_scale": case.scales.v,
        }
        self._captured: dict[tuple[Mode, int], Captured] = {}
        self._static: Plan | None = None

    def uses_decode_kernel(self, mode: Mode) -> bool:
        """Whether a mode is routed to the decode kernel."""
        return mode in DECODE_KERNEL_MODES

    def context_batch(self, step: Step, plan: Plan) -> int:
        """The batch size that the context kernel is told: that of its metadata."""
        del step
        return plan.batch

    def forward(self, index: int) -> Output | None:
        """Run one step; None for a capture."""
        step = self._case.steps[index]
        if step.launch is Launch.CAPTURE:
            self._capture(step)
            return None
        self._kv.write(step)
        queries = draw_queries(self._case, index, step.padded_tokens, self._case.geometry.head_dim_qk)
        return self._replay(step, queries) if step.launch is Launch.REPLAY else self._eager(step, queries)

    def _eager(self, step: Step, queries: torch.Tensor) -> Output:
        planned_late = step.mode in DECODE_KERNEL_MODES
        plan = plan_rows(self._case, self._bench, self._table, Row.padded(step) if planned_late else Row.real(step))
        query = place_queries(self._case, self._bench, "query", queries)
        out, lse = self._outputs(step.padded_tokens)
        self._attend(step, plan, query, out, lse)
        return self._output(step, plan.tokens, query, out, lse)

    def _attend(self, step: Step, plan: Plan, query: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> None:
        geometry = self._case.geometry
        shared = {
            "kv_cache": self._kv.cache,
            "block_tables": plan.block_tables,
            "seq_lens": plan.seq_lens,
            "window_left": geometry.window_left,
            "sinks": self._sinks,
            "kv_layout": geometry.kv_layout.value,
            "return_lse": True,
            **self._scales,
        }
        if self.uses_decode_kernel(step.mode):
            rows = step.padded_batch * step.tokens_per_request
            need = self._ops.decode_workspace(
                batch=step.padded_batch,
                q_len=step.tokens_per_request,
                q_heads=geometry.q_heads,
                kv_heads=geometry.kv_heads,
                head_dim_vo=geometry.head_dim_vo,
                max_seq_len=plan.max_kv_len,
            )
            self._bench.launcher.launch(
                self._ops.decode,
                query=query[:rows],
                workspace_buffer=self._workspace.take(need),
                max_seq_len=plan.max_kv_len,
                q_len_per_req=step.tokens_per_request,
                out=out[:rows],
                lse=lse[:rows],
                **shared,
            )
        else:
            self._bench.launcher.launch(
                self._ops.context,
                query=query,
                workspace_buffer=self._workspace.take(self._ops.prefill_workspace),
                max_q_len=plan.max_q_len,
                max_kv_len=plan.max_kv_len,
                batch_size=self.context_batch(step, plan),
                cum_seq_lens_q=plan.cum_seq_lens_q,
                cum_seq_lens_kv=plan.cum_seq_lens_kv,
                out=out,
                lse=lse,
                **shared,
            )

    def _outputs(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        geometry, memory = self._case.geometry, self._bench.memory
        shape = (rows, geometry.q_heads, geometry.head_dim_vo)
        out = memory.tensor("out", shape, geometry.dtype.torch_dtype, fill=Fill.OUTPUT)
        return out, memory.tensor("lse", shape[:2], torch.float32, fill=Fill.OUTPUT)

    def _output(self, step: Step, covered: int, query: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> Output:
        """What the step gave; rows that no plan covers are zeroed, since servers assert on the whole output."""
        out[covered:].zero_()
        lse[covered:].fill_(-math.inf)
        attended = tuple(
            Attended(
                first_row=first,
                query=query[first : first + request.q_len],
                key=self._kv.tokens.keys(request.slot, request.kv_len),
                value=self._kv.tokens.values(request.slot, request.kv_len),
            )
            for first, request in zip(packed_rows(step), step.requests, strict=True)
        )
        return Output(out=out, lse=lse, attended=attended, sinks=self._sinks, **self._scales)

    def _static_plan(self) -> Plan:
        """Static metadata for the largest bucket, zeros at first, which every graph of the session slices."""
        if self._static is None:
            captures = [step for step in self._case.steps if step.launch is Launch.CAPTURE]
            rows = max(step.padded_batch for step in captures)
            context = self._context_length()
            memory = self._bench.memory
            zeros = lambda name, *shape: memory.tensor(name, shape, torch.int32, fill=Fill.ZEROS)  # noqa: E731
            self._static = Plan(
                seq_lens=zeros("seq_lens", rows),
                cum_seq_lens_q=zeros("cum_seq_lens_q", rows + 1),
                cum_seq_lens_kv=zeros("cum_seq_lens_kv", rows + 1),
                block_tables=zeros("block_tables", rows, self._table.width(context)),
                max_q_len=1,
                max_kv_len=context,
                tokens=0,
            )
        return self._static

    def _context_length(self) -> int:
        """The model's context length: no request of the case is longer, nor is a padded row."""
        rows = [row.kv_len for step in self._case.steps for row in Row.padded(step)]
        return longest(rows) + self._case.max_len_slack

    def _capture(self, step: Step) -> None:
        static, batch, stride = self._static_plan(), step.padded_batch, step.tokens_per_request
        plan = Plan(
            seq_lens=static.seq_lens[:batch],
            cum_seq_lens_q=static.cum_seq_lens_q[: batch + 1],
            cum_seq_lens_kv=static.cum_seq_lens_kv[: batch + 1],
            block_tables=static.block_tables[:batch],
            max_q_len=stride,
            max_kv_len=static.max_kv_len,
            tokens=step.padded_tokens,
        )
        geometry = self._case.geometry
        blank = torch.zeros(step.padded_tokens, geometry.q_heads, geometry.head_dim_qk, dtype=geometry.dtype.torch_dtype)
        query = place_queries(self._case, self._bench, "query", blank)
        out, lse = self._outputs(step.padded_tokens)
        with self._bench.launcher.capture() as graph:
            self._attend(step, plan, query, out, lse)
        self._captured[step.mode, step.padded_tokens] = Captured(graph, plan, query, out, lse)

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        captured = self._captured[step.mode, step.padded_tokens]
        rows = Row.padded(step)
        refresh(captured.plan, self._table, rows)
        captured.query.copy_(queries)
        for tensor in (captured.out, captured.lse):
            self._bench.memory.renew(tensor)
        captured.graph.replay()
        return self._output(step, sum(row.q_len for row in rows), captured.query, captured.out, captured.lse)


def refresh(plan: Plan, table: PageTable, rows: list[Row]) -> None:
    """Write a batch into static metadata. Columns beyond its longest request keep the pages of the step before."""
    kv_lens = [row.kv_len for row in rows]
    plan.seq_lens.copy_(torch.tensor(kv_lens))
    plan.cum_seq_lens_q.copy_(torch.tensor(running_sum(row.q_len for row in rows)))
    plan.cum_seq_lens_kv.copy_(torch.tensor(running_sum(kv_lens)))
    width = table.pages_for(longest(kv_lens))
    plan.block_tables[:, :width].copy_(table_rows(table, rows, width))


