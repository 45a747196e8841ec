"""A server's attention layer on one of FlashInfer's wrappers for a paged KV cache.

Servers plan for each forward pass, and run the plan once per layer. Each graph has its own wrapper with metadata
buffers of a fixed size, which is planned again before each replay.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from attnfuzz.kernels.gpu.wrappers.life import IN_GRAPHS, WrapperLife, live
from attnfuzz.kernels.gpu.wrappers.masks import is_custom, mask_arguments, mask_buffers
from attnfuzz.kernels.gpu.wrappers.options import in_base_2, run_options
from attnfuzz.kernels.gpu.wrappers.paged import PagedForm, PagedWrapper, PageLists
from attnfuzz.kernels.interface.backend import Bench, Output
from attnfuzz.kernels.planning.paged_kv import ListedKv
from attnfuzz.kernels.planning.paged_session import Captured, PagedSession, capture
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.kernels.planning.queries import place_queries, softmax_scale
from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import Case, Launch, Mode, Pace, Step, Workspace


@dataclass(frozen=True)
class _Graph:
    """A graph, whose metadata are the buffers of its wrapper."""

    captured: Captured[PageLists]
    wrapper: PagedWrapper


class PagedWrapperSession(PagedSession):
    """A session with one wrapper per step if workspaces are FRESH, otherwise with one for all steps.

    A session's wrapper is planned for another layer before the judged one, and runs on other queries before the judged
    ones: leftovers of both must not matter. Lives plan for layers of `buckets`.
    """

    kv_type = ListedKv
    wrapper_type: type[PagedWrapper] = PagedWrapper

    def __init__(self, form: PagedForm, case: Case, bench: Bench, *, buckets: Sequence[Bucket] = ()) -> None:
        super().__init__(case, bench)
        self._form, self._buckets = form, buckets
        self._sm_scale = softmax_scale(case)
        self._kept: PagedWrapper | None = None
        self._graphs: dict[tuple[Mode, int], _Graph] = {}

    def _eager(self, step: Step, queries: torch.Tensor) -> Output:
        rows = self._planned_rows(step)
        lists = PageLists.of(self._case, self._table, rows)
        placed = lists.placed(self._bench)
        wrapper = self._wrapper()
        if wrapper is self._kept:
            wrapper.plan_another_layer(lists, placed)
        self._live(wrapper, rows, self._case.life)
        wrapper.plan_batch(lists, placed, self._mask(step, rows))
        if wrapper is self._kept or EarlierUse.RAN_BEFORE in self._case.life:
            self._run_another_layer(wrapper, rows, queries)
        self._let_neighbour_run(wrapper, rows, queries)
        query, results = self._placed(step, queries)
        self._launch(wrapper, rows, query, results)
        if wrapper is self._kept and self._case.pace is Pace.LATE:
            # A server that runs ahead plans its next batch now.
            after = PageLists.of(self._case, self._table, rows[::-1])
            wrapper.plan_another_layer(after, after.placed(self._bench))
        return self._rounded(self._output(step, rows, query, results), wrapper)

    def _mask(self, step: Step, rows: Sequence[Row]) -> dict[str, Any]:
        return mask_arguments(self._case, self._bench, step, rows, packed=self._form.packed_masks)

    def _live(self, wrapper: PagedWrapper, rows: Sequence[Row], uses: Collection[EarlierUse]) -> None:
        """Use the wrapper for other plans before that of `rows`."""

        def plan(others: Sequence[Row], layer: Mapping[str, Any]) -> None:
            lists = PageLists.of(self._case, self._table, others)
            wrapper.plan_batch(lists, lists.placed(self._bench), layer=layer)

        past = WrapperLife(
            rows, wrapper.layer, self._case.geometry, plan, wrapper.reset, wrapper.overwrite, self._buckets
        )
        live(past, uses, self._bench.memory)

    def _let_neighbour_run(self, wrapper: PagedWrapper, rows: Sequence[Row], queries: torch.Tensor) -> None:
        """Plan and run another wrapper on the same workspace of floats, if the case has one, for the rows reversed."""
        if EarlierUse.NEIGHBOUR not in self._case.life:
            return
        other = self._neighbour_of(wrapper, rows)
        lists = PageLists.of(self._case, self._table, rows[::-1])
        other.plan_batch(lists, lists.placed(self._bench))
        self._run_another_layer(other, rows[::-1], queries)

    def _neighbour_of(self, wrapper: PagedWrapper, rows: Sequence[Row]) -> PagedWrapper:
        """Make another wrapper on the same workspace of floats, for a batch of as many `rows`."""
        del rows
        return self.wrapper_type(self._form, self._case, self._bench, self._sm_scale, neighbour=wrapper)

    def _placed(self, step: Step, queries: torch.Tensor) -> tuple[torch.Tensor, Results]:
        """Place the queries of an eager step, and its results."""
        with self._bench.memory.at_once():
            query = place_queries(self._case, self._bench, queries)
            return query, Results.place(self._case, self._bench, step.padded_tokens)

    def _wrapper(self) -> PagedWrapper:
        if self._case.workspace is Workspace.FRESH:
            return self.wrapper_type(self._form, self._case, self._bench, self._sm_scale)
        if self._kept is None:
            self._kept = self.wrapper_type(self._form, self._case, self._bench, self._sm_scale)
        return self._kept

    def _run_another_layer(self, wrapper: PagedWrapper, rows: Sequence[Row], queries: torch.Tensor) -> None:
        """Run the plan on the same queries with reversed elements, into outputs that are not used."""
        query = place_queries(self._case, self._bench, queries.flip(-1))
        results = Results.place(self._case, self._bench, query.shape[0], prefix="another_")
        self._launch(wrapper, rows, query, results)

    def _launch(self, wrapper: PagedWrapper, rows: Sequence[Row], query: torch.Tensor, results: Results) -> None:
        """Run on the planned rows: wrappers reject additional ones."""
        planned = sum(row.q_len for row in rows)
        wrapper.run(
            q=query[:planned],
            paged_kv_cache=self._kv.cache,
            **self._cache_scales(),
            out=results.out[:planned],
            return_lse=True,
            sinks=self._sinks,
            **run_options(self._case, results[:planned]),
        )

    def _cache_scales(self) -> dict[str, Any]:
        """Return the scales of K and V as arguments of a run."""
        return {"k_scale": self._case.scales.k, "v_scale": self._case.scales.v}

    def _rounded(self, output: Output, wrapper: PagedWrapper) -> Output:
        """Count the roundings of the kernel, and that of v_scale, by which the output is multiplied afterwards."""
        assert output.lse is not None
        in_base_2(self._case, output.lse)
        return replace(output, roundings=wrapper.roundings + (self._case.scales.v != 1))

    def _capture(self, step: Step) -> None:
        """Plan for padding alone and run once, as servers do before a capture to load every kernel."""
        case, bench, rows = self._case, self._bench, Row.padded(step)
        self._kv.write(step)
        replays = [each for each in case.steps if _key(each) == _key(step) and each.launch is Launch.REPLAY]
        batches = [rows, *map(Row.padded, replays)]
        buffers = PageLists.reserve(bench, step.padded_batch, self._stale_ids(batches))
        for_masks = mask_buffers(bench, batches) if is_custom(case, step) else None
        wrapper = self.wrapper_type(self._form, case, bench, self._sm_scale, buffers, for_masks)
        lists = PageLists.of(case, self._table, rows)
        placed, mask = lists.placed(bench), self._mask(step, rows)
        wrapper.plan_batch(lists, placed, mask)
        # A graph's addresses are final, and only a planned wrapper knows the maximum number of rows.
        moved = [wrapper.reserve_for(PageLists.of(case, self._table, batch)) for batch in batches]
        if any(moved):
            wrapper.plan_batch(lists, placed, mask)
        shape = (step.padded_tokens, case.geometry.q_heads, case.geometry.head_dim_qk)
        warm = place_queries(case, bench, torch.zeros(shape, dtype=case.geometry.dtype.torch_dtype))
        self._launch(wrapper, rows, warm, Results.place(case, bench, shape[0], prefix="warm_"))
        captured = capture(
            case, bench, step, buffers, lambda query, results: self._launch(wrapper, rows, query, results)
        )
        self._graphs[_key(step)] = _Graph(captured, wrapper)

    def _stale_ids(self, batches: Sequence[Sequence[Row]]) -> torch.Tensor:
        """Return contents for a buffer of the page ids of the largest batch, which stay behind a smaller batch's."""
        most = max(sum(self._table.pages_for(row.kv_len) for row in rows) for rows in batches)
        slot = next(iter(self._kv.pages))
        return self._table.rows([slot], [0], [0], max(most, 1) + self._case.pages.table_slack)[0]

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        graph, rows = self._graphs[_key(step)], Row.padded(step)
        lists = PageLists.of(self._case, self._table, rows)
        self._live(graph.wrapper, rows, [use for use in self._case.life if use in IN_GRAPHS])
        graph.wrapper.plan_batch(lists, lists.placed(self._bench), self._mask(step, rows))
        self._let_neighbour_run(graph.wrapper, rows, queries)
        graph.captured.replay(self._bench, queries)
        output = self._output(step, rows, graph.captured.query, graph.captured.results)
        return self._rounded(output, graph.wrapper)


def _key(step: Step) -> tuple[Mode, int]:
    return step.mode, step.padded_tokens
