"""FlashInfer's POD attention: a prefill and decodes in one launch.

A decode has one query, so a step is split into parts: whole requests, all but the last query of a request, or single
queries. Each part is a row of a plan, with the keys that its last query sees.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import lives
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.wrappers.backends import (
    CONTRACT,
    PLAIN,
    described,
    each_variant,
    fa2_noise,
    prefill_modules,
)
from attnfuzz.kernels.gpu.wrappers.options import plan_options
from attnfuzz.kernels.gpu.wrappers.other_layers import layer_of
from attnfuzz.kernels.gpu.wrappers.paged import PageLists
from attnfuzz.kernels.gpu.wrappers.planned import LivingCall, Planned, PlannedKind
from attnfuzz.kernels.gpu.wrappers.ragged import place_tokens
from attnfuzz.kernels.interface.backend import Bench, Output, Unsupported
from attnfuzz.kernels.planning.gather import PUT_ROWS
from attnfuzz.kernels.planning.paged_kv import ListedKv, PagedKv
from attnfuzz.kernels.planning.plan import PageTable, Row
from attnfuzz.kernels.planning.queries import draw_queries, packed_rows, query_strides, softmax_scale
from attnfuzz.kernels.planning.results import Results, place_out
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Mode, QueryView, Step
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device


@dataclass(frozen=True)
class Part:
    """Consecutive queries of a request, from row `first` of the step on."""

    row: Row
    first: int

    @classmethod
    def of(cls, step: Step) -> "list[Part]":
        """List the requests with queries."""
        parts = map(cls, Row.real(step), packed_rows(step))
        return [part for part in parts if part.row.q_len]

    def single(self, index: int) -> "Part":
        """Return the query of this number, with the keys that it sees."""
        keys = max(0, self.row.kv_len - self.row.q_len + 1 + index)
        return Part(replace(self.row, q_len=1, kv_len=keys, owned=keys), self.first + index)

    def singles(self) -> "Iterator[Part]":
        """Return its queries one by one."""
        return map(self.single, range(self.row.q_len))

    def without_last(self) -> "Part":
        """Return all but its last query."""
        keys = max(0, self.row.kv_len - 1)
        return replace(self, row=replace(self.row, q_len=self.row.q_len - 1, kv_len=keys, owned=keys))

    @property
    def last(self) -> "Part":
        """Its last query."""
        return self.single(self.row.q_len - 1)

    @property
    def rows(self) -> range:
        """Its rows of the step."""
        return range(self.first, self.first + self.row.q_len)


@dataclass(frozen=True)
class TwoHalves:
    """The parts of a step, none of them empty."""

    prefill: list[Part]
    decode: list[Part]


def one_prefill(step: Step) -> TwoHalves:
    """Split a step: the longest request with a key for each query is the prefill; every other query is a decode.

    Raises Unsupported for a step without two queries, or without such a request: "kv_len must be greater than or equal
    to qo_len" (attention/pod.cuh).
    """
    parts = Part.of(step)
    chosen = max((part for part in parts if part.row.kv_len >= part.row.q_len), key=_queries, default=None)
    if chosen is None:
        raise Unsupported("a step in which no request has a key for each query")
    decodes = [single for part in parts if part is not chosen for single in part.singles()]
    if not decodes:
        chosen, decodes = _parted(chosen)
    return TwoHalves([chosen], decodes)


def many_prefills(step: Step) -> TwoHalves:
    """Split a step: requests of one query are the decodes. Raises Unsupported for a step without two queries."""
    parts = Part.of(step)
    prefills = [part for part in parts if part.row.q_len > 1]
    decodes = [part for part in parts if part.row.q_len == 1]
    if not prefills and len(decodes) > 1:
        prefills = [decodes.pop(0)]
    if not prefills:
        raise Unsupported("a step of one query token")
    if not decodes:
        prefills[-1], decodes = _parted(prefills[-1])
    return TwoHalves(prefills, decodes)


def _queries(part: Part) -> int:
    return part.row.q_len


def _parted(part: Part) -> tuple[Part, list[Part]]:
    if part.row.q_len < 2:
        raise Unsupported("a step of one query token")
    return part.without_last(), [part.last]


class PodSession:
    """A session with a plan and a launch for each step."""

    kind: PlannedKind

    def __init__(self, case: Case, bench: Bench, *, buckets: Sequence[Bucket] = ()) -> None:
        self._case, self._bench, self._buckets = case, bench, buckets
        self._kv = ListedKv(case, bench)
        self._table = PageTable(case, self._kv)
        self._scale = softmax_scale(case)
        self._layer = {**layer_of(case.geometry, "head_dim", "page_size", "window_left"), "sm_scale": self._scale}
        self._layer |= plan_options(case, self._layer, in_graph=False)

    @property
    def kv(self) -> PagedKv:
        """The pool."""
        return self._kv

    def forward(self, index: int) -> Output:
        """Run one step; no kernel sees padding."""
        case, step = self._case, self._case.steps[index]
        self._kv.write(step)
        queries = draw_queries(case, index, step.padded_tokens, case.geometry.head_dim_qk)
        results = Results.place(case, self._bench, step.padded_tokens)
        results.clear()
        if step.tokens:
            self._attend(self._split(step), queries, results)
        return Output(
            out=results.out,
            lse=results.lse if self._has_lse else None,
            attended=self._kv.tokens.attended(step, queries, packed_rows(step)),
            bmm1_scale=self._scale,
            bmm2_scale=1.0,
            # The kernel's, and that of a merge of split keys.
            roundings=2,
        )

    _has_lse = False

    def _split(self, step: Step) -> TwoHalves:
        raise NotImplementedError

    def _attend(self, halves: TwoHalves, queries: torch.Tensor, results: Results) -> None:
        raise NotImplementedError

    def _lists(self, rows: Sequence[Row]) -> PageLists:
        return PageLists.of(self._case, self._table, rows).placed(self._bench)

    def _made(self, neighbour: Planned | None = None) -> Planned:
        layout = self._case.geometry.kv_layout.value
        return Planned(self.kind, self._case, self._bench, neighbour, kv_layout=layout)

    def _plan_and_run(
        self, decodes: Sequence[Part], lists: Callable[[Sequence[Row]], dict[str, torch.Tensor]], **arguments: Any
    ) -> None:
        """Make a step's call. `lists` are those of a plan with other decodes."""
        LivingCall(
            case=self._case,
            bench=self._bench,
            make=self._made,
            lists=lists,
            rows=[part.row for part in decodes],
            layer=self._layer,
            arguments=arguments,
            buckets=self._buckets,
        ).carry_out(self._made())

    def _queries(self, name: str, parts: Sequence[Part], queries: torch.Tensor) -> torch.Tensor:
        """Place the queries of a half, one part after another, with the strides of the case's view."""
        rows = queries[_rows(parts)]
        return self._bench.memory.copy(name, rows, stride=query_strides(self._case, *rows.shape[1:]))

    def _put(self, target: torch.Tensor, parts: Sequence[Part], source: torch.Tensor) -> None:
        """Copy the results of some parts to their rows of the step."""
        rows = self._bench.memory.copy("rows", _rows(parts))
        self._bench.launcher.launch(PUT_ROWS, out=target, rows=rows, source=source)

    def _place_out(self, parts: Sequence[Part], prefix: str) -> torch.Tensor:
        return place_out(self._case, self._bench, len(_rows(parts)), prefix=prefix)


def _rows(parts: Sequence[Part]) -> torch.Tensor:
    return torch.tensor([row for part in parts for row in part.rows], dtype=torch.int64)


class OnePrefillSession(PodSession):
    """PODWithPagedKVCacheWrapper: a prefill of packed keys, and decodes of pages. It returns no LSE."""

    kind = PlannedKind(module="flashinfer.pod", name="PODWithPagedKVCacheWrapper", results=("out_p", "out_d"))

    def _split(self, step: Step) -> TwoHalves:
        return one_prefill(step)

    def _attend(self, halves: TwoHalves, queries: torch.Tensor, results: Results) -> None:
        (part,), geometry, tokens = halves.prefill, self._case.geometry, self._kv.tokens
        assert part.row.slot is not None
        lengths = (part.row.slot, part.row.kv_len)
        key, value = place_tokens(self._case, self._bench, tokens.keys(*lengths), tokens.values(*lengths))

        def lists(rows: Sequence[Row]) -> dict[str, torch.Tensor]:
            listed = self._lists(rows)
            return {"indptr": listed.kv_indptr, "indices": listed.kv_indices, "last_page_len": listed.last_page_len}

        out_p, out_d = self._place_out(halves.prefill, "prefill_"), self._place_out(halves.decode, "decode_")
        self._plan_and_run(
            halves.decode,
            lists,
            q_p=self._queries("q_p", halves.prefill, queries),
            k_p=key,
            v_p=value,
            q_d=self._queries("q_d", halves.decode, queries),
            paged_kv_cache_d=self._kv.cache,
            causal_p=True,
            kv_layout_p=geometry.kv_layout.value,
            sm_scale_p=self._scale,
            window_left_p=geometry.window_left,
            out_p=out_p,
            out_d=out_d,
        )
        self._put(results.out, halves.prefill, out_p)
        self._put(results.out, halves.decode, out_d)


class ManyPrefillsSession(PodSession):
    """BatchPODWithPagedKVCacheWrapper: prefills and decodes of pages.

    It returns both outputs, then both LSEs; its docstring has the order of ((out_p, lse_p), (out_d, lse_d)).
    """

    kind = PlannedKind(
        module="flashinfer.pod",
        name="BatchPODWithPagedKVCacheWrapper",
        results=("out_p", "out_d", "lse_p", "lse_d"),
    )
    _has_lse = True

    def _split(self, step: Step) -> TwoHalves:
        return many_prefills(step)

    def _attend(self, halves: TwoHalves, queries: torch.Tensor, results: Results) -> None:
        sides = {"p": halves.prefill, "d": halves.decode}

        def lists(decodes: Sequence[Row]) -> dict[str, torch.Tensor]:
            return {
                f"{name}_{side}": tensor
                for side, rows in (("p", [part.row for part in halves.prefill]), ("d", decodes))
                for name, tensor in self._lists(rows).tensors().items()
            }

        arguments: dict[str, torch.Tensor] = {}
        for side, parts in sides.items():
            outputs = Results.place(self._case, self._bench, len(_rows(parts)), prefix=f"{side}_")
            query = self._queries(f"q_{side}", parts, queries)
            arguments |= {f"q_{side}": query, f"out_{side}": outputs.out, f"lse_{side}": outputs.lse}
        cache = self._kv.cache
        pools = {"paged_kv_cache_p": cache, "paged_kv_cache_d": cache}
        self._plan_and_run(halves.decode, lists, **pools, causal_p=True, return_lse=True, **arguments)
        for side, parts in sides.items():
            self._put(results.out, parts, arguments[f"out_{side}"])
            self._put(results.lse, parts, arguments[f"lse_{side}"])


def _pod_modules(generator: str, kind: str, bucket: Bucket) -> tuple[Module, ...]:
    """List the modules of a POD wrapper, and those of FA2's prefill, whose plan it calls."""
    own = each_variant(bucket, kind, partial(_spec, generator))
    return (*own, *prefill_modules(bucket, "fa2"))


def _spec(
    generator: str, dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool
) -> Any:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - makes a CUDA context

    query, kv, out, index, head_dim, _, positions = described(dtypes, dims)
    generate = getattr(modules, generator)
    return generate(query, kv, out, head_dim, positions, window, cap, False, index, positions, window, cap)


def _backend(
    name: str,
    session: type[PodSession],
    contract: Contract,
    modules: Any,
    life: lives.UsesOf,
    *,
    short: bool,
    buckets: tuple[Bucket, ...],
) -> GpuBackend:
    return GpuBackend(
        name=name,
        archs=frozenset(Arch),
        capability=Capability(
            device=Device.CUDA,
            edges=UNSAID_EDGES,
            buckets=buckets,
            earlier_uses=life(buckets),
            modes=(Mode.EXTEND, Mode.CHUNKED_PREFILL),
            padding=True,
            empty_kv=short,
            kv_shorter_than_q=short,
            query_views=tuple(QueryView),
            kv_views=tuple(KvView),
            pool_holes=True,
            arguments=rules.POD,
        ),
        contract=contract,
        session=partial(session, buckets=buckets),
        kernels=(*session.kind.ops, PUT_ROWS),
        modules_of=modules,
        theoretical=fa2_noise,
    )


# A module has a file for each pair of masks: one bucket is enough. Groups of more than 16 would need larger tiles of
# decodes than the kernels have (CTA_TILE_Q of csrc/pod.cu).
_BUCKETS: Final = (PLAIN,)

POD_BACKENDS: Final = (
    _backend(
        "pod",
        OnePrefillSession,
        Contract(),
        partial(_pod_modules, "gen_pod_module", "POD"),
        lives.of_pod,
        short=False,
        buckets=_BUCKETS,
    ),
    _backend(
        "batch_pod",
        ManyPrefillsSession,
        CONTRACT,
        partial(_pod_modules, "gen_batch_pod_module", "batch POD"),
        lives.of_batch_pod,
        short=True,
        buckets=_BUCKETS,
    ),
)
