"""FlashInfer's wrappers for block-sparse masks. They have no batch: a step is one matrix, block-diagonal and causal."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import lives
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.wrappers.backends import (
    CAPPED,
    CONTRACT,
    PACKING,
    PLAIN,
    decode_modules,
    fa2_noise,
    fa3_noise,
    prefill_modules,
)
from attnfuzz.kernels.gpu.wrappers.options import plan_options
from attnfuzz.kernels.gpu.wrappers.other_layers import layer_of
from attnfuzz.kernels.gpu.wrappers.planned import LivingCall, Planned, PlannedKind
from attnfuzz.kernels.interface.backend import Bench, Output, Unsupported
from attnfuzz.kernels.planning.lengths import place_int32, running_sum
from attnfuzz.kernels.planning.queries import draw_queries, packed_rows, place_queries, softmax_scale
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, QueryView, Request, Step
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import KvLayout

_MOST_ENTRIES: Final = 1 << 22
"""Of a mask, or indices of a matrix, that a case may have."""


@dataclass(frozen=True)
class Visible:
    """The keys that a query sees: a range of all keys of the step."""

    keys: range

    @classmethod
    def of(cls, step: Step) -> "list[Visible]":
        """List the keys that each query of a step sees: causal, the last query aligned to the last key."""
        begins = running_sum(request.kv_len for request in step.requests)
        return [
            cls(range(begin, begin + max(0, request.kv_len - request.q_len + 1 + index)))
            for begin, request in zip(begins, step.requests, strict=False)
            for index in range(request.q_len)
        ]


@dataclass(frozen=True)
class Matrix:
    """A block-sparse matrix: blocks of `side` queries and keys, in compressed rows. Blocks of one are full.

    `mask` [blocks, side, side] has the visible pairs of larger ones. `columns` are the keys, rounded up to blocks.
    """

    side: int
    columns: int
    indptr: Sequence[int]
    indices: Sequence[int]
    mask: torch.Tensor | None

    @classmethod
    def of(cls, step: Step, side: int) -> "Matrix":
        """Make the mask of a step. Raises Unsupported for a large one."""
        visible, keys = Visible.of(step), sum(request.kv_len for request in step.requests)
        columns = -(-keys // side) * side
        entries = sum(len(each.keys) for each in visible) if side == 1 else len(visible) * columns
        if entries > _MOST_ENTRIES:
            raise Unsupported(f"a sparse matrix of {entries} entries (more than {_MOST_ENTRIES} take too long)")
        if side == 1:
            indices = [key for each in visible for key in each.keys]
            return cls(1, columns, running_sum(len(each.keys) for each in visible), indices, None)
        dense = torch.zeros(-(-len(visible) // side) * side, columns, dtype=torch.bool)
        for row, each in enumerate(visible):
            dense[row, each.keys.start : each.keys.stop] = True
        blocks = dense.unflatten(0, (-1, side)).unflatten(2, (-1, side)).transpose(1, 2)
        present = blocks.flatten(2).any(dim=2)
        rows, indices_of = present.nonzero(as_tuple=True)
        indptr = running_sum(present.sum(dim=1).tolist())
        return cls(side, columns, indptr, indices_of.tolist(), blocks[rows, indices_of])


class SparseSession:
    """A session with one plan and one launch for each step. K and V of all requests lie one after another."""

    kind: PlannedKind
    splits_keys: bool
    """Whether its kernels on Hopper may split the keys of a query, and merge parts in the output's dtype."""

    def __init__(self, backend: str, case: Case, bench: Bench, *, buckets: Sequence[Bucket] = ()) -> None:
        self._backend, self._case, self._bench, self._buckets = backend, case, bench, buckets
        self._tokens = SlotTokens.cached(case, device=bench.device)
        self._scale = softmax_scale(case)
        self._layer = {**layer_of(case.geometry, "head_dim", "logits_soft_cap"), "sm_scale": self._scale}
        self._layer |= plan_options(case, self._layer, in_graph=False)

    def forward(self, index: int) -> Output:
        """Run one step; no kernel sees padding. Where no query has a key there is no call."""
        case, step = self._case, self._case.steps[index]
        drawn = draw_queries(case, index, step.padded_tokens, case.geometry.head_dim_qk)
        query = place_queries(case, self._bench, drawn)
        results = Results.place(case, self._bench, step.padded_tokens)
        runs = any(request.q_len and request.kv_len for request in step.requests)
        if runs:
            self._attend(step, query[: step.tokens], results[: step.tokens])
        results[step.tokens if runs else 0 :].clear()
        return Output(
            out=results.out,
            lse=results.lse,
            attended=self._tokens.attended(step, query, packed_rows(step)),
            bmm1_scale=self._scale,
            bmm2_scale=1.0,
            roundings=2 if self._backend == "fa2" or self.splits_keys else 1,
        )

    def _attend(self, step: Step, query: torch.Tensor, results: Results) -> None:
        raise NotImplementedError

    def _lists(self, step: Step) -> dict[str, Any]:
        """Return the arguments of a plan that depend on the requests."""
        raise NotImplementedError

    def _made(self, neighbour: Planned | None = None) -> Planned:
        return Planned(self.kind, self._case, self._bench, neighbour, backend=self._backend)

    def _plan_and_run(self, step: Step, **arguments: Any) -> None:
        LivingCall(
            case=self._case,
            bench=self._bench,
            make=self._made,
            lists=lambda requests: self._lists(msgspec.structs.replace(step, requests=tuple(requests))),
            rows=step.requests,
            layer=self._layer,
            arguments=arguments,
            buckets=self._buckets,
        ).carry_out(self._made())


class BlockSession(SparseSession):
    """BlockSparseAttentionWrapper, with blocks as large as the case's pages."""

    kind = PlannedKind(module="flashinfer.sparse", name="BlockSparseAttentionWrapper")
    # Blocks of few rows run on CUDA cores.
    splits_keys = True

    def __init__(self, backend: str, case: Case, bench: Bench, *, buckets: Sequence[Bucket] = ()) -> None:
        super().__init__(backend, case, bench, buckets=buckets)
        self._layer["o_data_type"] = case.geometry.dtype.torch_dtype

    def _lists(self, step: Step) -> dict[str, Any]:
        matrix = Matrix.of(step, self._case.geometry.page_size)
        lists = {
            "indptr": place_int32(self._bench, "indptr", matrix.indptr),
            "indices": place_int32(self._bench, "indices", matrix.indices),
            "M": step.tokens,
            "N": matrix.columns,
            "R": matrix.side,
            "C": matrix.side,
        }
        if matrix.mask is not None:
            bits = matrix.mask.contiguous().view(torch.uint8)
            lists["mask"] = self._bench.memory.copy("mask", bits).view(torch.bool)
        return lists

    def _attend(self, step: Step, query: torch.Tensor, results: Results) -> None:
        memory, side = self._bench.memory, self._case.geometry.page_size
        columns = -(-sum(request.kv_len for request in step.requests) // side) * side
        key, value = (_padded(tokens, columns) for tokens in self._tokens.packed(step))
        self._plan_and_run(
            step,
            q=query,
            k=memory.copy("key", key),
            v=memory.copy("value", value),
            out=results.out,
            lse=results.lse,
            return_lse=True,
        )


def _padded(tokens: torch.Tensor, count: int) -> torch.Tensor:
    """Pad tokens to [count, heads, dim] with zeros, which no query sees, but a kernel multiplies."""
    padding = torch.zeros((count - len(tokens), *tokens.shape[1:]), dtype=tokens.dtype, device=tokens.device)
    return torch.cat([tokens, padding])


@dataclass(frozen=True)
class Columns:
    """The sizes of a request's blocks of keys for each head, and the number of them that each query sees.

    Keys before the first query are a block, or two that are divided at another key for each head; every other key is a
    block, so that all heads have as many.
    """

    sizes: Sequence[Sequence[int]]
    seen: Sequence[int]

    @classmethod
    def of(cls, request: Request, heads: int) -> "Columns":
        """Make the blocks of one request."""
        before = max(0, request.kv_len - request.q_len)
        singles = request.kv_len - before
        divided = [_divided(before, head) for head in range(heads)]
        # The first queries see none if there are fewer keys than queries.
        new = [max(0, request.kv_len - request.q_len + 1 + index) - before for index in range(request.q_len)]
        return cls(
            [parts + [1] * singles for parts in divided],
            [len(divided[0]) + each if before or each > 0 else 0 for each in new],
        )


def _divided(tokens: int, head: int) -> list[int]:
    if tokens < 2:
        return [tokens] * bool(tokens)
    first = 1 + head % (tokens - 1)
    return [first, tokens - first]


class VariableSession(SparseSession):
    """VariableBlockSparseAttentionWrapper: a block for each query, and other blocks of keys for each head.

    Its results have the layout [heads, queries, ...].
    """

    kind = PlannedKind(module="flashinfer.sparse", name="VariableBlockSparseAttentionWrapper", results=("out", "lse"))
    splits_keys = False

    def _lists(self, step: Step) -> dict[str, Any]:
        memory, heads = self._bench.memory, self._case.geometry.kv_heads
        blocks = [Columns.of(request, heads) for request in step.requests]
        sizes = [[size for each in blocks for size in each.sizes[head]] for head in range(heads)]
        if step.tokens * len(sizes[0]) * heads > _MOST_ENTRIES:
            raise Unsupported(f"a sparse matrix of more than {_MOST_ENTRIES} blocks")
        seen = torch.zeros(step.tokens, len(sizes[0]), dtype=torch.uint8)
        row = column = 0
        for each in blocks:
            for count in each.seen:
                seen[row, column : column + count] = 1
                row += 1
            column += len(each.sizes[0])
        every = (heads, -1, -1)
        return {
            "block_mask_map": memory.copy("block_mask_map", seen.expand(every).contiguous()).view(torch.bool),
            "block_row_sz": memory.copy("block_row_sz", torch.ones(heads, step.tokens, dtype=torch.int32)),
            "block_col_sz": memory.copy("block_col_sz", torch.tensor(sizes, dtype=torch.int32)),
        }

    def _attend(self, step: Step, query: torch.Tensor, results: Results) -> None:
        memory, (key, value) = self._bench.memory, self._tokens.packed(step)
        self._plan_and_run(
            step,
            q=query.transpose(0, 1),
            k=memory.copy("key", key.transpose(0, 1)),
            v=memory.copy("value", value.transpose(0, 1)),
            out=results.out.transpose(0, 1),
            lse=results.lse.transpose(0, 1),
            return_lse=True,
        )


def _block_modules(bucket: Bucket, backend: str) -> tuple[Module, ...]:
    """List the modules of both kinds of cores: blocks of few rows run on CUDA cores, whatever the backend."""
    packing = (PACKING,) if max(bucket.page_sizes) > 1 else ()
    return (*prefill_modules(bucket, backend), *decode_modules(bucket), *packing)


def _bucket(bucket: Bucket, *sides: int) -> Bucket:
    return msgspec.structs.replace(bucket, page_sizes=sides, layouts=(KvLayout.NHD,))


def _backend(name: str, session: type[SparseSession], backend: str, modules: Any, *buckets: Bucket) -> GpuBackend:
    life = lives.of_block_sparse if session is BlockSession else lives.of_variable_sparse
    return GpuBackend(
        name=name,
        archs=frozenset({Arch.HOPPER} if backend == "fa3" else Arch),
        capability=Capability(
            device=Device.CUDA,
            edges=UNSAID_EDGES,
            buckets=buckets,
            modes=Mode.of_kernels(),
            padding=True,
            query_views=tuple(QueryView),
            earlier_uses=life(buckets),
            arguments=rules.BLOCK_SPARSE if session is BlockSession else rules.VARIABLE_SPARSE,
        ),
        contract=CONTRACT,
        session=partial(session, backend, buckets=buckets),
        kernels=session.kind.ops,
        modules_of=modules,
        theoretical=fa3_noise if backend == "fa3" else fa2_noise,
    )


# Groups that are compiled for CUDA cores, and larger ones that run on tensor cores.
_PLAIN: Final = msgspec.structs.replace(PLAIN, heads=((1, 1), (4, 2), (3, 3), (6, 2), (7, 1), (8, 1)))

SPARSE_BACKENDS: Final = (
    _backend(
        "fa2_block_sparse", BlockSession, "fa2", partial(_block_modules, backend="fa2"), _bucket(_PLAIN, 1, 16, 5)
    ),
    # "SM90 batch prefill kernels reject MaskMode.CUSTOM" (docstring of BatchPrefillWithPagedKVCacheWrapper): no masks.
    _backend("fa3_block_sparse", BlockSession, "fa3", partial(_block_modules, backend="fa3"), _bucket(_PLAIN, 1)),
    _backend(
        "fa2_variable_sparse",
        VariableSession,
        "fa2",
        partial(prefill_modules, backend="fa2"),
        _bucket(_PLAIN, 1),
        _bucket(CAPPED, 1),
    ),
    _backend(
        "fa3_variable_sparse", VariableSession, "fa3", partial(prefill_modules, backend="fa3"), _bucket(_PLAIN, 1)
    ),
)
