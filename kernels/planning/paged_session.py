"""A server's paged attention, independent of the kernel: eager steps, graphs, and the metadata of both.

Graphs keep metadata in static buffers of the largest bucket, which a replay refreshes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from attnfuzz.kernels.interface.backend import Bench, Fill, Graph, Output
from attnfuzz.kernels.planning.lengths import int32, longest, running_sum
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import BatchMetadata, PageTable, Row, plan_rows, table_rows
from attnfuzz.kernels.planning.queries import cached_scales, draw_queries, packed_rows, place_queries, place_sinks
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.reference.case import Case, Launch, Mode, Step

Metadata = TypeVar("Metadata")


@dataclass(frozen=True)
class Captured(Generic[Metadata]):
    """A graph and the static tensors that it reads and writes; query is [rows, q_heads, head_dim_qk]."""

    graph: Graph
    plan: Metadata
    query: torch.Tensor
    results: Results

    def replay(self, bench: Bench, queries: torch.Tensor) -> None:
        """Run the graph on `queries` [rows, q_heads, head_dim_qk] and the present contents of the plan's tensors."""
        with bench.memory.at_once():
            bench.memory.overwrite(self.query, queries)
            self.results.renew(bench)
        self.graph.replay()


def capture(
    case: Case, bench: Bench, step: Step, plan: Metadata, launch: Callable[[torch.Tensor, Results], None]
) -> Captured[Metadata]:
    """Record the launches of `launch` on static queries and results of the step's bucket."""
    geometry = case.geometry
    shape = (step.padded_tokens, geometry.q_heads, geometry.head_dim_qk)
    with bench.memory.at_once():
        query = place_queries(case, bench, torch.zeros(shape, dtype=geometry.dtype.torch_dtype))
        results = Results.place(case, bench, step.padded_tokens)
    with bench.launcher.capture() as graph:
        launch(query, results)
    return Captured(graph, plan, query, results)


def largest_bucket(case: Case) -> int:
    """Return the rows of the largest batch that the case captures, which determine the size of static metadata."""
    return max(step.padded_batch for step in case.steps if step.launch is Launch.CAPTURE)


PLANNED_AFTER_PADDING = frozenset({Mode.DECODE, Mode.TARGET_VERIFY})
"""The modes whose metadata covers padded rows as well (SGLang PR #24856). All others are planned before padding."""


class GraphedSession(ABC):
    """A session with a pool of pages, which captures a step, or fills the pool and runs the step."""

    _case: Case
    _kv: PagedKv

    @property
    def kv(self) -> PagedKv:
        """The pool."""
        return self._kv

    def forward(self, index: int) -> Output | None:
        """Run one step. Returns None for a capture."""
        step = self._case.steps[index]
        if step.launch is Launch.CAPTURE:
            self._capture(step)
            return None
        self._kv.write(step)
        queries = draw_queries(self._case, index, step.padded_tokens, self._case.geometry.head_dim_qk)
        return self._replay(step, queries) if step.launch is Launch.REPLAY else self._eager(step, queries)

    @abstractmethod
    def _capture(self, step: Step) -> None:
        """Capture a graph for later steps."""

    @abstractmethod
    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        """Replay a graph on queries [rows, q_heads, head_dim_qk]."""

    @abstractmethod
    def _eager(self, step: Step, queries: torch.Tensor) -> Output:
        """Plan and launch, on queries [rows, q_heads, head_dim_qk]."""


class PagedSession(GraphedSession):
    """An attention layer over one case. Subclasses launch a kernel in `_attend`."""

    kv_type: type[PagedKv] = PagedKv
    table_type: type[PageTable] = PageTable
    workspace_type: type[SharedWorkspace] = SharedWorkspace

    def __init__(self, case: Case, bench: Bench, *, sinks_dtype: torch.dtype = torch.float32) -> None:
        self._case, self._bench = case, bench
        self._kv = self.kv_type(case, bench)
        self._table = self.table_type(case, self._kv)
        self._workspace = self.workspace_type(case, bench)
        self._sinks = place_sinks(case, bench, sinks_dtype)
        self._scales = cached_scales(case)
        self._captured: dict[tuple[Mode, int], Captured[BatchMetadata]] = {}
        self._static: BatchMetadata | None = None

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        """Launch on query [rows, q_heads, head_dim_qk], whose first rows the plan covers."""
        raise NotImplementedError

    def _eager(self, step: Step, queries: torch.Tensor) -> Output:
        rows = self._planned_rows(step)
        plan = self._plan(rows)
        with self._bench.memory.at_once():
            query = place_queries(self._case, self._bench, queries)
            results = Results.place(self._case, self._bench, step.padded_tokens)
        self._attend(step, plan, query, results)
        return self._output(step, rows, query, results)

    def _planned_rows(self, step: Step) -> list[Row]:
        """Return the planned rows of an eager step, with padding only in modes that are planned after padding."""
        return Row.padded(step) if step.mode in PLANNED_AFTER_PADDING else Row.real(step)

    def _plan(self, rows: Sequence[Row]) -> BatchMetadata:
        return plan_rows(self._case, self._bench, self._table, rows)

    def _output(self, step: Step, planned: Sequence[Row], query: torch.Tensor, results: Results) -> Output:
        """Return the step's output. Rows outside the plan are cleared, since servers assert on the whole output."""
        results[sum(row.q_len for row in planned) :].clear()
        attended = self._kv.tokens.attended(step, query, packed_rows(step))
        return Output(out=results.out, lse=results.lse, attended=attended, sinks=self._sinks, **self._scales)

    def _static_plan(self) -> BatchMetadata:
        """Return static metadata for the largest bucket, initially zeros, which every graph of the session slices."""
        if self._static is None:
            batch, context, bench = largest_bucket(self._case), self._context_length(), self._bench

            def zeros(name: str, size: int) -> torch.Tensor:
                return bench.memory.tensor(name, (size,), torch.int32, fill=Fill.ZEROS)

            table = torch.zeros(batch, self._table.width(context), dtype=torch.int32)
            with bench.memory.at_once():
                self._static = BatchMetadata(
                    seq_lens=zeros("seq_lens", batch),
                    cum_seq_lens_q=zeros("cum_seq_lens_q", batch + 1),
                    cum_seq_lens_kv=zeros("cum_seq_lens_kv", batch + 1),
                    block_tables=self._table.place(bench, table),
                    max_q_len=1,
                    max_kv_len=context,
                )
        return self._static

    def _context_length(self) -> int:
        """Return the model's context length: at least the length of every request and padded row of the case."""
        rows = [row.kv_len for step in self._case.steps for row in Row.padded(step)]
        return longest(rows) + self._case.max_len_slack

    def _capture(self, step: Step) -> None:
        static, batch = self._static_plan(), step.padded_batch
        plan = BatchMetadata(
            seq_lens=static.seq_lens[:batch],
            cum_seq_lens_q=static.cum_seq_lens_q[: batch + 1],
            cum_seq_lens_kv=static.cum_seq_lens_kv[: batch + 1],
            block_tables=static.block_tables[:batch],
            max_q_len=step.tokens_per_request,
            max_kv_len=static.max_kv_len,
        )
        self._captured[step.mode, step.padded_tokens] = capture(
            self._case, self._bench, step, plan, lambda query, results: self._attend(step, plan, query, results)
        )

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        captured, rows = self._captured[step.mode, step.padded_tokens], Row.padded(step)
        self._refresh(captured.plan, rows)
        captured.replay(self._bench, queries)
        return self._output(step, rows, captured.query, captured.results)

    def _refresh(self, plan: BatchMetadata, rows: Sequence[Row]) -> None:
        """Write a batch into static metadata. Columns past its longest request keep the pages of the previous step."""
        kv_lens, overwrite = [row.kv_len for row in rows], self._bench.memory.overwrite
        width = self._table.pages_for(longest(kv_lens))
        with self._bench.memory.at_once():
            overwrite(plan.seq_lens, int32(kv_lens))
            overwrite(plan.cum_seq_lens_q, int32(running_sum(row.q_len for row in rows)))
            overwrite(plan.cum_seq_lens_kv, int32(running_sum(kv_lens)))
            overwrite(plan.block_tables[:, :width], table_rows(self._table, rows, width))
