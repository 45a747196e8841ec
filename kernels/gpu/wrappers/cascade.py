"""FlashInfer's wrappers for prefixes that requests share: attention to prefix and rest, then a merge."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import lives
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.direct.single import single_prefill_modules
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.states import MERGE_MODULE
from attnfuzz.kernels.gpu.wrappers.backends import (
    HALF,
    PLAIN,
    WINDOWED,
    decode_modules,
    fa2_noise,
    prefill_modules,
)
from attnfuzz.kernels.gpu.wrappers.life import IN_GRAPHS
from attnfuzz.kernels.gpu.wrappers.options import plan_options
from attnfuzz.kernels.gpu.wrappers.other_layers import layer_of
from attnfuzz.kernels.gpu.wrappers.paged import PageLists, last_page_len, pages_of
from attnfuzz.kernels.gpu.wrappers.planned import LivingCall, Planned, PlannedKind
from attnfuzz.kernels.interface.backend import Bench, Output, Unsupported
from attnfuzz.kernels.planning.paged_kv import ListedKv, PagedKv
from attnfuzz.kernels.planning.paged_session import PLANNED_AFTER_PADDING, Captured, GraphedSession, capture
from attnfuzz.kernels.planning.plan import PageTable, Row
from attnfuzz.kernels.planning.queries import draw_queries, packed_rows, place_queries, softmax_scale
from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.arguments import ArgumentForm, Rules
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Launch, Mode, QueryView, Step, Workspace
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import KvLayout


def common_pages(lines: Sequence[Sequence[int]]) -> list[int]:
    """Return the first pages that all of `lines` have in common."""
    shared = []
    for pages in zip(*lines, strict=False):
        if len(set(pages)) > 1:
            break
        shared.append(pages[0])
    return shared


@dataclass(frozen=True)
class Split:
    """A batch whose rows have pages in common: groups of consecutive rows, and the shared pages of each.

    Each query of a group sees all keys of the shared pages.
    """

    rows: Sequence[Row]
    pages: Sequence[Sequence[int]]
    groups: Sequence[range]
    shared: Sequence[Sequence[int]]

    @classmethod
    def of(cls, table: PageTable, rows: Sequence[Row], size: int, *, alone: bool) -> "Split":
        """Group rows that have pages in common; a row `alone`, or one that shares none, shares half of its own."""
        pages = pages_of(table, rows)
        whole = [line[: max(0, row.kv_len - row.q_len) // size] for line, row in zip(pages, rows, strict=True)]
        groups: list[range] = []
        shared: list[list[int]] = []
        for index, line in enumerate(whole):
            both = [] if alone or not groups else common_pages([shared[-1], line])
            if both:
                groups[-1], shared[-1] = range(groups[-1].start, index + 1), both
            else:
                groups.append(range(index, index + 1))
                shared.append(line)
        halved = [
            line[: (len(line) + 1) // 2] if len(group) == 1 else line
            for group, line in zip(groups, shared, strict=True)
        ]
        return cls(rows, pages, groups, halved)

    def levels(self, size: int) -> tuple[PageLists, PageLists]:
        """Return the lists of the shared pages, a request for each group, and of the rest, for pages of `size`."""
        of_groups = [sum(self.rows[index].q_len for index in group) for group in self.groups]
        full = [size if pages else 0 for pages in self.shared]
        first = [len(pages) for group, pages in zip(self.groups, self.shared, strict=True) for _ in group]
        return (
            PageLists.made(of_groups, self.shared, full),
            PageLists.made(
                [row.q_len for row in self.rows],
                [pages[begin:] for pages, begin in zip(self.pages, first, strict=True)],
                [last_page_len(row.kv_len - begin * size, size) for row, begin in zip(self.rows, first, strict=True)],
            ),
        )


_ARGUMENTS: Final = {
    "qo_indptr": ("qo_indptr_arr", "qo_indptr_buf_arr"),
    "kv_indptr": ("paged_kv_indptr_arr", "paged_kv_indptr_buf_arr"),
    "kv_indices": ("paged_kv_indices_arr", "paged_kv_indices_buf_arr"),
    "last_page_len": ("paged_kv_last_page_len", "paged_kv_last_page_len_buf_arr"),
}
"""Of plan, and of the constructor for graphs: a tensor for each level."""

_LEVELS: Final = PlannedKind(
    module="flashinfer.cascade",
    name="MultiLevelCascadeAttentionWrapper",
    results=("out",),
    buffers=tuple(buffers for _, buffers in _ARGUMENTS.values()),
    has_levels=True,
)


class LevelsSession(GraphedSession):
    """A session on MultiLevelCascadeAttentionWrapper with two levels. It returns no LSE.

    The last level is causal, the first one is not: its keys precede all queries. In a graph, whose plans have the same
    number of requests in each level, each row has a prefix of its own.
    """

    kind = _LEVELS

    def __init__(self, case: Case, bench: Bench, *, buckets: Sequence[Bucket] = ()) -> None:
        self._case, self._bench = case, bench
        self._kv = ListedKv(case, bench)
        self._table = PageTable(case, self._kv)
        self._scale = softmax_scale(case)
        self._buckets = buckets
        self._kept: Planned | None = None
        self._graphs: dict[tuple[Mode, int], tuple[Captured[None], Planned]] = {}

    def _eager(self, step: Step, queries: torch.Tensor) -> Output:
        rows = Row.padded(step) if step.mode in PLANNED_AFTER_PADDING else Row.real(step)
        query = place_queries(self._case, self._bench, queries)
        results = Results.place(self._case, self._bench, step.padded_tokens)
        planned = sum(row.q_len for row in rows)
        if rows:
            self._call(rows, query[:planned], results[:planned], alone=False).carry_out(self._wrapper())
        results[planned:].clear()
        return self._output(step, query, results)

    def _wrapper(self) -> Planned:
        if self._kept is None or self._case.workspace is Workspace.FRESH:
            self._kept = self._made()
        return self._kept

    def _made(self, neighbour: Planned | None = None, **graph: Any) -> Planned:
        layout = self._case.geometry.kv_layout.value
        return Planned(self.kind, self._case, self._bench, neighbour, num_levels=2, kv_layout=layout, **graph)

    def _call(self, rows: Sequence[Row], query: torch.Tensor, results: Results, *, alone: bool) -> LivingCall[Row]:
        """Make a plan and its run. Each row has a prefix of its own if it is `alone`."""
        geometry = self._case.geometry

        def lists(others: Sequence[Row]) -> dict[str, Any]:
            split = Split.of(self._table, others, geometry.page_size, alone=alone)
            levels = [level.placed(self._bench) for level in split.levels(geometry.page_size)]
            return {theirs: [vars(level)[ours] for level in levels] for ours, (theirs, _) in _ARGUMENTS.items()}

        layer = layer_of(geometry, "head_dim", "page_size", "window_left", "logits_soft_cap")
        layer |= {"causal": True, "sm_scale": self._scale}
        layer |= plan_options(self._case, layer, in_graph=False)
        return LivingCall(
            case=self._case,
            bench=self._bench,
            make=self._made,
            lists=lists,
            rows=rows,
            layer=layer,
            arguments={"q": query, "paged_kv_cache": self._kv.cache, "out": results.out},
            buckets=self._buckets,
        )

    def _capture(self, step: Step) -> None:
        case, bench = self._case, self._bench
        self._kv.write(step)
        replays = [each for each in case.steps if _key(each) == _key(step) and each.launch is Launch.REPLAY]
        size = case.geometry.page_size
        batches = [Split.of(self._table, Row.padded(each), size, alone=True).levels(size) for each in (step, *replays)]
        buffers = []
        for level in (0, 1):
            most = max(len(batch[level].kv_indices) for batch in batches)
            ids = torch.zeros(max(1, most), dtype=torch.int32)
            buffers.append(PageLists.reserve(bench, step.padded_batch, ids))
        arrays: dict[str, Any] = {
            theirs: [vars(level)[ours] for level in buffers] for ours, (_, theirs) in _ARGUMENTS.items()
        }
        wrapper = self._made(use_cuda_graph=True, **arrays)
        shape = (step.padded_tokens, case.geometry.q_heads, case.geometry.head_dim_qk)
        warm = place_queries(case, bench, torch.zeros(shape, dtype=case.geometry.dtype.torch_dtype))
        unused = Results.place(case, bench, shape[0], prefix="warm_")
        call = self._call(Row.padded(step), warm, unused, alone=True)
        call.plan(wrapper, ())
        # Load every kernel before the capture, as servers do.
        wrapper.run(**call.arguments)

        def launch(query: torch.Tensor, results: Results) -> None:
            wrapper.run(q=query, paged_kv_cache=self._kv.cache, out=results.out)

        self._graphs[_key(step)] = capture(case, bench, step, None, launch), wrapper

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        captured, wrapper = self._graphs[_key(step)]
        call = self._call(Row.padded(step), captured.query, captured.results, alone=True)
        call.plan(wrapper, [use for use in self._case.life if use in IN_GRAPHS])
        call.let_neighbour_run(wrapper)
        captured.replay(self._bench, queries)
        return self._output(step, captured.query, captured.results)

    def _output(self, step: Step, query: torch.Tensor, results: Results) -> Output:
        attended = self._kv.tokens.attended(step, query, packed_rows(step))
        # Each level's, those of split keys, and that of the merge.
        return Output(out=results.out, lse=None, attended=attended, bmm1_scale=self._scale, bmm2_scale=1.0, roundings=3)


def _key(step: Step) -> tuple[Mode, int]:
    return step.mode, step.padded_tokens


@dataclass(frozen=True)
class PrefixKind:
    """One of the wrappers for a prefix of the whole batch, and its names for the lists of a plan."""

    planned: PlannedKind
    lists: dict[str, str]
    plan: dict[str, Any]
    run: dict[str, Any]
    scaled: bool


def _prefix_kind(name: str, lists: dict[str, str], *, plan: dict[str, Any], run: dict[str, Any]) -> PrefixKind:
    planned = PlannedKind(
        module="flashinfer.cascade",
        name=name,
        plan="begin_forward",
        run="forward",
        results=("out",),
        # That of decode is handed on to BatchDecodeWithPagedKVCacheWrapper, which requires it.
        zero_floats=not run,
    )
    return PrefixKind(planned, lists, plan, run, scaled=bool(run))


_BY_NAME: Final = {"data_type": "float16"}
PREFIX_DECODE: Final = _prefix_kind(
    "BatchDecodeWithSharedPrefixPagedKVCacheWrapper",
    {
        "kv_indptr": "unique_kv_indptr",
        "kv_indices": "unique_kv_indices",
        "last_page_len": "unique_kv_last_page_len",
    },
    plan={"data_type": torch.float16},
    run={},
)
PREFIX_PREFILL: Final = _prefix_kind(
    "BatchPrefillWithSharedPrefixPagedKVCacheWrapper",
    {
        "qo_indptr": "qo_indptr",
        "kv_indptr": "paged_kv_indptr",
        "kv_indices": "paged_kv_indices",
        "last_page_len": "paged_kv_last_page_len",
    },
    plan={},
    run={"causal": True},
)


class PrefixSession:
    """A session with a prefix for consecutive requests, in tensors of its own, and the rest in pages.

    A wrapper that takes no softmax scale computes with the default, whatever the case's factor.
    """

    def __init__(self, kind: PrefixKind, case: Case, bench: Bench, *, buckets: Sequence[Bucket] = ()) -> None:
        self._kind, self._case, self._bench, self._buckets = kind, case, bench, buckets
        self._kv = ListedKv(case, bench)
        self._table = PageTable(case, self._kv)
        self._scale = softmax_scale(case)
        if not kind.scaled:
            self._scale = case.geometry.head_dim_qk**-0.5

    @property
    def kv(self) -> PagedKv:
        """The pool."""
        return self._kv

    def forward(self, index: int) -> Output:
        """Run one step; no kernel sees padding."""
        case, step = self._case, self._case.steps[index]
        self._kv.write(step)
        drawn = draw_queries(case, index, step.padded_tokens, case.geometry.head_dim_qk)
        query = place_queries(case, self._bench, drawn)
        results = Results.place(case, self._bench, step.padded_tokens)
        if step.tokens:
            self._attend(step, query[: step.tokens], results[: step.tokens])
        results[step.tokens :].clear()
        attended = self._kv.tokens.attended(step, query, packed_rows(step))
        return Output(out=results.out, lse=None, attended=attended, bmm1_scale=self._scale, bmm2_scale=1.0, roundings=3)

    def _attend(self, step: Step, query: torch.Tensor, results: Results) -> None:
        """Call for each group of requests with a common prefix."""
        rows = [row for row in Row.real(step) if row.q_len]
        split = Split.of(self._table, rows, self._case.geometry.page_size, alone=False)
        if not all(split.shared):
            raise Unsupported("a request without a prefix of whole pages")
        first = 0
        for group, shared in zip(split.groups, split.shared, strict=True):
            members = slice(group.start, group.stop)
            last = first + sum(row.q_len for row in rows[members])
            one = Split(rows[members], split.pages[members], [range(len(group))], [shared])
            self._attend_group(one, query[first:last], results[first:last])
            first = last

    def _attend_group(self, group: Split, query: torch.Tensor, results: Results) -> None:
        geometry, memory, slot = self._case.geometry, self._bench.memory, group.rows[0].slot
        assert slot is not None
        shared = len(group.shared[0]) * geometry.page_size

        def lists(rows: Sequence[Row]) -> dict[str, torch.Tensor]:
            _, unique = replace(group, rows=rows, pages=pages_of(self._table, rows), groups=[range(len(rows))]).levels(
                geometry.page_size
            )
            placed = vars(unique.placed(self._bench))
            return {theirs: placed[ours] for ours, theirs in self._kind.lists.items()}

        layer = {
            "num_qo_heads": geometry.q_heads,
            "num_kv_heads": geometry.kv_heads,
            "head_dim": geometry.head_dim_qk,
            "page_size": geometry.page_size,
            **(_BY_NAME if ArgumentForm.DTYPES_BY_NAME in self._case.arguments else self._kind.plan),
        }
        arguments = {
            "q": query,
            "k_shared": memory.copy("k_shared", self._kv.tokens.keys(slot, shared)),
            "v_shared": memory.copy("v_shared", self._kv.tokens.values(slot, shared)),
            "unique_kv_cache": self._kv.cache,
            "out": results.out,
            **({"sm_scale": self._scale} if self._kind.scaled else {}),
            **self._kind.run,
        }
        LivingCall(
            case=self._case,
            bench=self._bench,
            make=self._made,
            lists=lists,
            rows=group.rows,
            layer=layer,
            arguments=arguments,
            buckets=self._buckets,
        ).carry_out(self._made())

    def _made(self, neighbour: Planned | None = None) -> Planned:
        layout = self._case.geometry.kv_layout.value
        return Planned(self._kind.planned, self._case, self._bench, neighbour, kv_layout=layout)


def _levels_modules(bucket: Bucket) -> tuple[Module, ...]:
    """List the modules of two levels: their wrappers choose FA3 on Hopper (determine_attention_backend)."""
    return (*prefill_modules(bucket, "fa3"), MERGE_MODULE)


def _prefix_decode_modules(bucket: Bucket) -> tuple[Module, ...]:
    return (*single_prefill_modules(bucket, "fa3"), *decode_modules(bucket), MERGE_MODULE)


def _prefix_prefill_modules(bucket: Bucket) -> tuple[Module, ...]:
    return (*single_prefill_modules(bucket, "fa3"), *_levels_modules(bucket))


def _backend(
    name: str,
    session: Any,
    kind: PlannedKind,
    modules: Any,
    bucket: Bucket,
    modes: tuple[Mode, ...],
    arguments: Rules,
    **more: Any,
) -> GpuBackend:
    buckets = (bucket,)
    return GpuBackend(
        name=name,
        archs=frozenset({Arch.HOPPER}),
        capability=Capability(
            device=Device.CUDA,
            buckets=buckets,
            earlier_uses=(lives.of_levels if kind is _LEVELS else lives.of_prefix)(buckets),
            modes=modes,
            padding=True,
            query_views=tuple(QueryView),
            kv_views=tuple(KvView),
            pool_holes=True,
            arguments=arguments,
            **more,
        ),
        contract=Contract(),
        session=partial(session, buckets=buckets),
        kernels=kind.ops,
        modules_of=modules,
        # FA3 rounds less, but the parts of decodes on CUDA cores and FA2 on other GPUs differ: the larger of both.
        theoretical=fa2_noise,
    )


_GRAPHS: Final = (Mode.DECODE, Mode.TARGET_VERIFY)
# No dtype but the default, float16, gets from begin_forward to the plan. In HND, FA3's single prefill of the prefix
# fails (fa3_single_prefill_hnd), which would hide the rest.
_HALF: Final = msgspec.structs.replace(
    HALF, layouts=(KvLayout.NHD,), heads=((1, 1), (4, 2), (3, 1), (8, 1), (16, 2)), page_sizes=(1, 5)
)

CASCADE_BACKENDS: Final = (
    _backend(
        "cascade_levels",
        LevelsSession,
        _LEVELS,
        _levels_modules,
        PLAIN,
        Mode.of_kernels(),
        rules.CASCADE_LEVELS,
        edges=UNSAID_EDGES,
        graph_modes=_GRAPHS,
    ),
    # Apart, as each level has the window end at its own last key.
    _backend(
        "cascade_levels_window",
        LevelsSession,
        _LEVELS,
        _levels_modules,
        WINDOWED,
        Mode.of_kernels(),
        rules.CASCADE_LEVELS,
    ),
    _backend(
        "shared_prefix_decode",
        partial(PrefixSession, PREFIX_DECODE),
        PREFIX_DECODE.planned,
        _prefix_decode_modules,
        _HALF,
        (Mode.DECODE,),
        rules.SHARED_PREFIX_DECODE,
        empty_kv=False,
    ),
    _backend(
        "shared_prefix_prefill",
        partial(PrefixSession, PREFIX_PREFILL),
        PREFIX_PREFILL.planned,
        _prefix_prefill_modules,
        _HALF,
        (Mode.EXTEND, Mode.CHUNKED_PREFILL),
        rules.SHARED_PREFIX_PREFILL,
        edges=UNSAID_EDGES,
        empty_kv=False,
        kv_shorter_than_q=False,
    ),
)
