"""Multi-head latent attention on TRT-LLM's kernels, as a serving engine drives them.

Decode, verify and draft extend attend to the latents in the paged cache. Prefill attends to keys and values projected
from them: causally to its own tokens, then to the prefix in chunks, merged one after another. The ragged kernel leaves
rows without keys unwritten, so a chunk in which a request has none is fixed up before it is merged (SGLang PR #22688).
Draft extends are padded to a uniform stride; capture and replay use the same stride (SGLang PR #21987).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Bench, Fill, Output
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.planning.gather import GATHER_ROWS
from attnfuzz.kernels.planning.lengths import int32, longest, place_int32
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.paged_session import Captured, capture, largest_bucket
from attnfuzz.kernels.planning.plan import PageTable, Row, pad_queries, table_rows
from attnfuzz.kernels.planning.queries import BmmScales, cached_scales, draw_queries, packed_rows, place_queries
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.kernels.trtllm.prefill import MlaPrefill
from attnfuzz.reference.case import Case, Launch, Mode, Step

_TABLE_MULTIPLE_TOKENS = 128
"""SGLang pads MLA page tables to whole blocks of 128 tokens."""


@dataclass(frozen=True)
class DecodePlan:
    """Metadata of the decode kernel: seq_lens [batch] and block_tables [batch, width], int32, and a stated maximum."""

    seq_lens: torch.Tensor
    block_tables: torch.Tensor
    max_seq_len: int


Replan = Callable[[Sequence[Row]], None]
"""Updates a graph's metadata for another batch."""


class MlaSession:
    """A server's latent attention layer over one case. Revisions and planted defects override a method, or a part."""

    table_type: type[PageTable] = PageTable
    workspace_type: type[SharedWorkspace] = SharedWorkspace
    prefill_type: type[MlaPrefill] = MlaPrefill

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        latent = case.geometry.latent
        assert latent is not None
        self._ops, self._case, self._bench, self._latent = ops, case, bench, latent
        self._kv = PagedKv(case, bench)
        self._table = self.table_type(case, self._kv)
        self._workspace = self.workspace_type(case, bench)
        self._prefill = self.prefill_type(ops, case, bench, self._workspace)
        # The softmax scale is that of the per-head keys that the latents represent.
        self._scales = cached_scales(case)
        self._captured: dict[tuple[Mode, int], Captured[Replan]] = {}
        self._static: DecodePlan | None = None

    @property
    def kv(self) -> PagedKv:
        """The pool."""
        return self._kv

    def replay_stride(self, step: Step) -> int:
        """Return the query stride for which a replay plans lengths: the captured one."""
        return step.tokens_per_request

    def needs_fixup(self, has_zero_kv: bool) -> bool:
        """Return whether a chunk is fixed up before it is merged."""
        return has_zero_kv

    def forward(self, index: int) -> Output | None:
        """Run one step. Returns None for a capture."""
        step = self._case.steps[index]
        if step.launch is Launch.CAPTURE:
            self._capture(step)
            return None
        if not step.mode.speculative:
            return self._prefill.forward(index, self.needs_fixup)
        self._kv.write(step, rejected_drafts=step.mode is Mode.DRAFT_EXTEND)
        head_dim = self._case.geometry.head_dim_qk
        queries = draw_queries(self._case, index, step.padded_tokens, head_dim, _first_rows(step))
        if step.launch is Launch.REPLAY:
            return self._replay(step, queries)
        if step.mode in (Mode.DRAFT_EXTEND, Mode.DRAFT_EXTEND_V2):
            return self._draft_extend(step, queries)
        return self._uniform(step, queries)

    def _uniform(self, step: Step, queries: torch.Tensor) -> Output:
        """Run a decode or verify: planned after padding, with equal numbers of queries."""
        with self._bench.memory.at_once():
            query = place_queries(self._case, self._bench, queries)
            results = self._place_results(step.padded_tokens)
        self._attend(Row.padded(step), query, results)
        return self._output(step, query, results, packed_rows(step))

    def _draft_extend(self, step: Step, queries: torch.Tensor) -> Output:
        """Run draft extend: plan before padding, spread ragged queries to the longest's stride, gather results."""
        stride = longest(request.q_len for request in step.requests)
        rows = self._spread(step, stride)
        spread_rows = [b * stride + i for b, request in enumerate(step.requests) for i in range(request.q_len)]
        shape = (len(rows) * stride, *queries.shape[1:])
        with self._bench.memory.at_once():
            at = self._bench.memory.copy("gathered_rows", torch.tensor(spread_rows, dtype=torch.long))
            query = place_queries(self._case, self._bench, queries)
            spread_query = self._bench.memory.tensor("padded_query", shape, query.dtype, fill=Fill.ZEROS)
        spread_query[at] = query[: step.tokens]
        spread = self._place_results(len(rows) * stride, prefix="padded_")
        self._attend(rows, spread_query, spread)
        results = self._place_results(step.padded_tokens)
        for packed, source in ((results.out, spread.out), (results.lse, spread.lse)):
            self._bench.launcher.launch(GATHER_ROWS, out=packed[: step.tokens], source=source, rows=at)
        # Clear rows outside the plan, because servers assert on the whole output.
        results[step.tokens :].clear()
        return self._output(step, query, results, packed_rows(step))

    def _spread(self, step: Step, stride: int) -> list[Row]:
        """Return the rows of a draft extend, with queries padded to the stride at which they are spread."""
        return pad_queries(Row.real(step), stride)

    def _attend(self, rows: Sequence[Row], query: torch.Tensor, results: Results) -> None:
        """Plan `rows`, which have equal numbers of queries, and launch on all of their queries."""
        self._decode(self._plan(rows), query, results)

    def _decode(self, plan: DecodePlan, query: torch.Tensor, results: Results) -> None:
        """Launch on query rows [batch * stride, heads, rank + rope] with the plan's `batch`."""
        self._bench.launcher.launch(self._ops.mla_decode, **self._decode_arguments(plan, query, results))

    def _decode_arguments(self, plan: DecodePlan, query: torch.Tensor, results: Results) -> dict[str, Any]:
        batch = plan.seq_lens.shape[0]
        # An empty batch has the shape of single queries.
        stride = query.shape[0] // batch if batch else 1
        need = self._ops.decode_workspace(
            batch=batch,
            q_len=stride,
            q_heads=query.shape[1],
            kv_heads=1,
            head_dim_vo=self._latent.rank,
            max_seq_len=plan.max_seq_len,
        )
        return {
            "query": query.unflatten(0, (batch, stride)),
            "kv_cache": self._kv.cache,
            "workspace_buffer": self._workspace.take(need),
            "qk_nope_head_dim": self._latent.nope,
            "kv_lora_rank": self._latent.rank,
            "qk_rope_head_dim": self._latent.rope,
            "block_tables": plan.block_tables,
            "seq_lens": plan.seq_lens,
            "max_seq_len": plan.max_seq_len,
            "out": results.out.unflatten(0, (batch, stride)),
            "lse": results.lse,
            "return_lse": True,
            **self._launched_scales(),
        }

    def _launched_scales(self) -> BmmScales:
        """Return the factors that a launch gets."""
        return self._scales

    def _place_results(self, rows: int, prefix: str = "") -> Results:
        return Results.place(self._case, self._bench, rows, prefix=prefix)

    def _output(self, step: Step, query: torch.Tensor, results: Results, first_rows: Sequence[int]) -> Output:
        attended = self._kv.tokens.attended(step, query, first_rows)
        return Output(out=results.out, lse=results.lse, attended=attended, **self._scales)

    def _width(self, length: int) -> int:
        return self._table.width(length, multiple=max(1, _TABLE_MULTIPLE_TOKENS // self._kv.page_size))

    def _plan(self, rows: Sequence[Row]) -> DecodePlan:
        kv_lens = [row.kv_len for row in rows]
        table = table_rows(self._table, rows, self._width(longest(kv_lens)))
        with self._bench.memory.at_once():
            return DecodePlan(
                seq_lens=place_int32(self._bench, "seq_lens", kv_lens),
                block_tables=self._table.place(self._bench, table),
                max_seq_len=longest(kv_lens) + self._case.max_len_slack,
            )

    def _static_plan(self) -> DecodePlan:
        """Return static metadata for the largest bucket, which every graph of the session slices."""
        if self._static is None:
            batch = largest_bucket(self._case)
            context = longest(row.kv_len for step in self._case.steps for row in widest_rows(step))
            table = torch.full((batch, self._width(context)), -1, dtype=torch.int32)
            self._static = DecodePlan(
                seq_lens=self._bench.memory.tensor("seq_lens", (batch,), torch.int32, fill=Fill.ZEROS),
                block_tables=self._table.place(self._bench, table),
                max_seq_len=context + self._case.max_len_slack,
            )
        return self._static

    def _capture(self, step: Step) -> None:
        replan, launch = self._capturable(step)
        self._captured[step.mode, step.padded_tokens] = capture(self._case, self._bench, step, replan, launch)

    def _capturable(self, step: Step) -> tuple[Replan, Callable[[torch.Tensor, Results], None]]:
        """Return the replanning of a step's graph before each replay, and the launches of the graph."""
        static, batch = self._static_plan(), step.padded_batch
        plan = replace(static, seq_lens=static.seq_lens[:batch], block_tables=static.block_tables[:batch])
        return partial(self._refresh, plan), partial(self._decode, plan)

    def _refresh(self, plan: DecodePlan, rows: Sequence[Row]) -> None:
        """Write a batch into static metadata."""
        memory = self._bench.memory
        with memory.at_once():
            memory.overwrite(plan.seq_lens, int32([row.kv_len for row in rows]))
            memory.overwrite(plan.block_tables, table_rows(self._table, rows, plan.block_tables.shape[1]))

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        """Replay a graph. Queries are at the captured stride, even if requests accepted fewer tokens."""
        captured = self._captured[step.mode, step.padded_tokens]
        captured.plan(pad_queries(Row.padded(step), self.replay_stride(step)))
        captured.replay(self._bench, queries)
        return self._output(step, captured.query, captured.results, _first_rows(step))


def _first_rows(step: Step) -> Sequence[int]:
    """Return the first query row of each request: at the captured stride in a replay, otherwise packed."""
    if step.launch is not Launch.REPLAY:
        return packed_rows(step)
    return range(0, len(step.requests) * step.tokens_per_request, step.tokens_per_request)


def widest_rows(step: Step) -> list[Row]:
    """Return a step's rows at the maximum length that a plan gives them: queries padded to a draft's full stride."""
    rows = Row.padded(step)
    return pad_queries(rows, step.tokens_per_request) if step.mode.speculative else rows
