"""FlashInfer's BatchMLAPagedAttentionWrapper: planned on the host for a batch, then run like a kernel.

The backends run it on FA2 and FA3, with latents in pages, queries of any lengths, and graphs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.arguments.lives import on_another_stream
from attnfuzz.kernels.cuda.visible import Arch, processors
from attnfuzz.kernels.gpu import argument_rules, lives
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import DEEPSEEK_V3, GpuBackend
from attnfuzz.kernels.gpu.library_ops import library_op, object_ops, overwrite
from attnfuzz.kernels.gpu.wrappers.life import IN_GRAPHS, WrapperLife, live
from attnfuzz.kernels.interface.backend import Bench, Op, Output, Unsupported
from attnfuzz.kernels.interface.library_call import Action, Gathered, LibraryCall
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.planning.lengths import place_int32, running_sum
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE
from attnfuzz.kernels.planning.paged_kv import ListedKv, PagedKv
from attnfuzz.kernels.planning.paged_session import PLANNED_AFTER_PADDING, Captured, GraphedSession, capture
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.kernels.planning.queries import cached_scales, packed_rows, place_queries
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Mode, QueryView, Step, Workspace
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import KvLayout, Latent
from attnfuzz.reference.noise import NoiseModel

_MODULE = "flashinfer.mla"
_WRAPPER = "BatchMLAPagedAttentionWrapper"
_LISTS = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")


_FLOATS = "float_workspace_buffer"


def _buffer(name: str) -> str:
    """Return a launch's name for the buffer of a graph to which a list is copied."""
    return f"{name}_buf"


@cache
def mla_ops(module: str) -> dict[str, Op]:
    """Make the ops of the wrapper in a module: those of its objects by their action, and those of its methods by name.

    A plan copies to the device, and the lists of a batch into a graph's buffers. A run takes
    query [tokens, heads, rank + rope], kv_cache [pages, page, rank + rope], out [tokens, heads, rank], lse [tokens,
    heads] in base 2, and the wrapper's tensors.
    """
    plan = LibraryCall(
        action=Action.METHOD,
        module=module,
        name=_WRAPPER,
        method="plan",
        gathered=Gathered(name="metadata", maker="MLAPlanMetadata.csr", parts=_LISTS),
        # FlashInfer's "backend preflight rejection before launch" (mla/_batch_mla/_backends/_capabilities.py).
        refusal="_BackendPlanUnsupportedError",
    )
    run = LibraryCall(action=Action.METHOD, module=module, name=_WRAPPER, method="run")
    return {
        **object_ops(module, _WRAPPER, frozenset({_FLOATS, *_LISTS})),
        "plan": library_op(plan, (_FLOATS, *map(_buffer, _LISTS)), plans=True),
        "run": library_op(run, ("out", "lse", _FLOATS)),
    }


MLA_OPS = mla_ops(_MODULE)


@dataclass(frozen=True)
class MlaBatch:
    """A batch to plan for: each request's queries, keys, and its ceil(keys / page size) pages."""

    q_lens: Sequence[int]
    kv_lens: Sequence[int]
    pages: Sequence[Sequence[int]]

    @classmethod
    def of(cls, rows: Sequence[Row], kv: PagedKv) -> "MlaBatch":
        """Make the batch of these rows; pages that they may read without owning are the dummy page."""
        pages = []
        for row in rows:
            owned = kv.pages[row.slot][: -(-row.owned // kv.page_size)] if row.slot is not None else []
            reach = -(-row.kv_len // kv.page_size)
            pages.append(owned + [DUMMY_PAGE] * (reach - len(owned)))
        return cls([row.q_len for row in rows], [row.kv_len for row in rows], pages)

    def place(self, bench: Bench) -> dict[str, torch.Tensor]:
        """Place the lists of a plan, int32: indptrs [batch + 1], kv_indices [pages], kv_len_arr [batch]."""
        lists: dict[str, Sequence[int]] = {
            "qo_indptr": running_sum(self.q_lens),
            "kv_indptr": running_sum(len(pages) for pages in self.pages),
            "kv_indices": list(chain.from_iterable(self.pages)),
            "kv_len_arr": self.kv_lens,
        }
        with bench.memory.at_once():
            return {name: place_int32(bench, name, values) for name, values in lists.items()}


@dataclass(frozen=True)
class StaticSize:
    """The size of a graph: the number of requests of all its plans, and their maximum number of pages."""

    requests: int
    pages: int

    def buffers(self, bench: Bench) -> dict[str, torch.Tensor]:
        """Allocate buffers for the lists of such plans, int32. Unused page ids stay poison."""
        sizes = {
            "qo_indptr": self.requests + 1,
            "kv_indptr": self.requests + 1,
            "kv_indices": self.pages,
            "kv_len_arr": self.requests,
        }
        with bench.memory.at_once():
            return {name: bench.memory.tensor(_buffer(name), (size,), torch.int32) for name, size in sizes.items()}


class MlaWrapper:
    """A wrapper of `backend`, fa2 or fa3, with its workspace and metadata in guarded memory.

    With `static` it is made for a CUDA graph: a capture records `launch`, and `plan` before each replay copies metadata
    to fixed buffers. All plans must then have the same number of requests (FlashInfer, docstring of the constructor:
    the captured batch shape cannot change). Its integer workspace is FlashInfer's own allocation.
    """

    module = _MODULE

    def __init__(self, case: Case, bench: Bench, backend: str, static: StaticSize | None = None) -> None:
        latent = case.geometry.latent
        assert latent is not None
        self._case, self._bench, self._latent = case, bench, latent
        need = WorkspaceBytes(0, workspace_bytes(latent, processors(bench.device)))
        self._buffers = {} if static is None else static.buffers(bench)
        self._workspace = {"float_workspace_buffer": SharedWorkspace(case, bench).take(need)}
        self._planned: dict[str, torch.Tensor] = {}
        graph = {"use_cuda_graph": True} if self._buffers else {}
        self._ops = mla_ops(self.module)
        self._wrapper = bench.launcher.launch(
            self._ops[Action.MAKE], backend=backend, **self._workspace, **self._buffers, **graph
        )
        run = self._ops["run"]
        self._run_op = run if graph else on_another_stream(run, case.life)

    def overwrite(self) -> None:
        """Overwrite its workspace of floats."""
        overwrite(tuple(self._workspace.values()))

    def layer(self, sm_scale: float) -> dict[str, Any]:
        """Return the arguments of a plan of causal attention, besides its lists."""
        geometry = self._case.geometry
        return {
            "num_heads": geometry.q_heads,
            "head_dim_ckv": self._latent.rank,
            "head_dim_kpe": self._latent.rope,
            "page_size": geometry.page_size,
            "causal": True,
            "sm_scale": sm_scale,
            "q_data_type": geometry.dtype.torch_dtype,
            "kv_data_type": geometry.kv_dtype.torch_dtype,
            "lse_mode": "base2",
        }

    def plan(self, batch: MlaBatch, sm_scale: float) -> None:
        """Plan causal attention of a batch."""
        self.plan_layer(batch, self.layer(sm_scale))

    def plan_layer(self, batch: MlaBatch, layer: Mapping[str, Any]) -> None:
        """Plan a batch of at least one request: FlashInfer plans no empty one.

        Raises Unsupported for a batch that FlashInfer refuses: on FA2 some lengths would lose keys at a tile's edge.
        """
        self._planned = batch.place(self._bench)
        held = {**self._workspace, **{_buffer(name): tensor for name, tensor in self._buffers.items()}}
        self._bench.launcher.launch(
            self._ops["plan"],
            wrapper=self._wrapper,
            held=frozenset(held),
            **held,
            **self._planned,
            **layer,
        )
        if EarlierUse.COPIED in self._case.life:
            self._wrapper = self._bench.launcher.launch(self._ops[Action.COPY], wrapper=self._wrapper)

    def launch(self, query: torch.Tensor, kv_cache: torch.Tensor, results: Results) -> None:
        """Run on queries [tokens, heads, rank + rope] and a pool with one head, in either layout.

        The wrapper's tensors are recorded as well: they are read, and a fault may hit them.
        """
        head_axis = 1 if self._case.geometry.kv_layout is KvLayout.HND else 2
        # A graph's buffers replace the lists copied to them.
        held = {**self._workspace, **(self._buffers or self._planned)}
        self._bench.launcher.launch(
            self._run_op,
            wrapper=self._wrapper,
            held=frozenset(held),
            **held,
            query=query,
            kv_cache=kv_cache.squeeze(head_axis),
            out=results.out,
            lse=results.lse,
            return_lse=True,
        )


def workspace_bytes(latent: Latent, processors: int) -> int:
    """Return the size of the float workspace: two partial outputs of 64 rows per multiprocessor, in 16 bits, and LSE.

    scheduler.cuh (MLAPlan, partial_o and partial_lse); planning refuses a smaller one.
    """
    rows = 2 * 64 * processors
    return rows * latent.rank * 2 + rows * 4


def modules_of(bucket: Bucket, backend: str) -> tuple[Module, ...]:
    """Return the only module of a bucket's dtypes and latent."""
    assert bucket.latent is not None
    name = f"MLA {backend} {bucket.dtype} on {bucket.kv_dtype}, {bucket.latent.rank} + {bucket.latent.rope}"
    return (Module(name, partial(_spec, backend, bucket)),)


def _spec(backend: str, bucket: Bucket) -> object:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - it creates a CUDA context

    latent, dtype = bucket.latent, bucket.dtype.torch_dtype
    assert latent is not None
    return modules.gen_batch_mla_module(
        backend, dtype, bucket.kv_dtype.torch_dtype, dtype, torch.int32, latent.rank, latent.rope, use_profiler=False
    )


def _final() -> None:
    raise Unsupported("the class has no method that replaces its workspaces")


class MlaWrapperSession(GraphedSession):
    """A session that plans and runs each step. Each step has a new wrapper, unless the case reuses its workspace."""

    wrapper_type: type[MlaWrapper] = MlaWrapper
    _buckets: Sequence[Bucket] = ()

    def __init__(self, case: Case, bench: Bench, backend: str) -> None:
        latent = case.geometry.latent
        assert latent is not None
        self._case, self._bench, self._backend = case, bench, backend
        self._kv = ListedKv(case, bench)
        # The softmax scale is that of the per-head keys that the latents represent.
        self._scales = cached_scales(case)
        self._kept: MlaWrapper | None = None
        self._captured: dict[tuple[Mode, int], Captured[MlaWrapper]] = {}

    def _eager(self, step: Step, queries: torch.Tensor) -> Output:
        rows = Row.padded(step) if step.mode in PLANNED_AFTER_PADDING else Row.real(step)
        query = place_queries(self._case, self._bench, queries)
        results = Results.place(self._case, self._bench, step.padded_tokens)
        planned = sum(row.q_len for row in rows)
        # FlashInfer plans no empty batch: "FA MLA native planning requires a nonempty batch."
        if rows:
            wrapper = self._wrapper()
            self._plan(wrapper, rows, self._case.life)
            if EarlierUse.RAN_BEFORE in self._case.life:
                others = place_queries(self._case, self._bench, queries.flip(-1))
                unused = Results.place(self._case, self._bench, planned, prefix="another_")
                self._launch(wrapper, others[:planned], unused)
            self._launch(wrapper, query[:planned], results[:planned])
        results[planned:].clear()
        return self._output(step, query, results)

    def _wrapper(self) -> MlaWrapper:
        if self._kept is None or self._case.workspace is Workspace.FRESH:
            self._kept = self.wrapper_type(self._case, self._bench, self._backend)
        return self._kept

    def _layer(self, wrapper: MlaWrapper) -> dict[str, Any]:
        """Return the arguments of a plan for the case's layer."""
        return wrapper.layer(self._scales["bmm1_scale"])

    def _plan(self, wrapper: MlaWrapper, rows: Sequence[Row], uses: Collection[EarlierUse] = ()) -> None:
        """Use the wrapper for other plans, then plan it."""

        def plan(others: Sequence[Row], layer: Mapping[str, Any]) -> None:
            wrapper.plan_layer(MlaBatch.of(others, self._kv), layer)

        layer = self._layer(wrapper)
        past = WrapperLife(rows, layer, self._case.geometry, plan, _final, wrapper.overwrite, self._buckets)
        live(past, uses, self._bench.memory)
        plan(rows, layer)

    def _launch(self, wrapper: MlaWrapper, query: torch.Tensor, results: Results) -> None:
        assert isinstance(self._kv.cache, torch.Tensor)
        wrapper.launch(query, self._kv.cache, results)

    def _capture(self, step: Step) -> None:
        replays = [other for other in self._case.steps if other.launch is Launch.REPLAY and other.mode is step.mode]
        batches = [Row.padded(other) for other in (step, *replays) if other.padded_tokens == step.padded_tokens]
        page = self._kv.page_size
        pages = max(sum(-(-row.kv_len // page) for row in rows) for rows in batches)
        static = StaticSize(step.padded_batch, pages)
        wrapper = self.wrapper_type(self._case, self._bench, self._backend, static)
        self._plan(wrapper, Row.padded(step))
        self._captured[step.mode, step.padded_tokens] = capture(
            self._case, self._bench, step, wrapper, lambda query, results: self._launch(wrapper, query, results)
        )

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        captured = self._captured[step.mode, step.padded_tokens]
        self._plan(captured.plan, Row.padded(step), [use for use in self._case.life if use in IN_GRAPHS])
        captured.replay(self._bench, queries)
        return self._output(step, captured.query, captured.results)

    def _output(self, step: Step, query: torch.Tensor, results: Results) -> Output:
        attended = self._kv.tokens.attended(step, query, packed_rows(step))
        # Split KV keeps partial outputs in 16 bits, and merges them (scheduler.cuh, MLAPlan: sizeof_dtype_o).
        return Output(out=results.out, lse=results.lse, attended=attended, roundings=2, **self._scales)


MLA_BUCKET: Final = msgspec.structs.replace(
    DEEPSEEK_V3,
    # Other numbers of heads are refused where a tile of 64 or 128 query rows would end within a token (_fa_common.py,
    # _validate_fa_causal_tile_bound).
    heads=((1, 1), (8, 1), (16, 1), (128, 1)),
    page_sizes=(1, 16, 32, 64),
    layouts=(KvLayout.HND, KvLayout.NHD),
)


def _backend(name: str, backend: str, archs: frozenset[Arch]) -> GpuBackend:
    return GpuBackend(
        name=name,
        archs=archs,
        capability=Capability(
            device=Device.CUDA,
            edges=UNSAID_EDGES,
            buckets=(MLA_BUCKET,),
            modes=Mode.of_kernels(),
            graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY),
            padding=True,
            query_views=tuple(QueryView),
            pool_holes=True,
            arguments=argument_rules.MLA,
            earlier_uses=lives.of_mla((MLA_BUCKET,)),
        ),
        contract=Contract(lse=LseBase.TWO),
        session=partial(MlaWrapperSession, backend=backend),
        kernels=tuple(MLA_OPS.values()),
        modules_of=lambda bucket: modules_of(bucket, backend),
        # Weights enter the second product in the cache's dtype; the denominator is undocumented.
        theoretical=lambda _: NoiseModel.unknown_kernel(),
    )


# "fa2 MLA requires SM80 or newer", "fa3 MLA requires SM90" (_fa_common.py, _validate_generated_fa_plan, which refuses a
# plan whose tiles do not fit shared memory).
MLA_FA2: Final = _backend("mla_fa2", "fa2", frozenset(Arch))
MLA_FA3: Final = _backend("mla_fa3", "fa3", frozenset({Arch.HOPPER}))
