"""FlashInfer's BatchMLAPagedAttentionWrapper: planned on the host for a batch, then run like a kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch

from attnfuzz.kernels.backend import Bench, Op, Unsupported
from attnfuzz.kernels.gpu import flashinfer_op
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.visible import processors
from attnfuzz.kernels.gpu.wrappers.wrapper import run
from attnfuzz.kernels.lengths import place_int32, running_sum
from attnfuzz.kernels.ops_table import WorkspaceBytes
from attnfuzz.kernels.paged_kv import DUMMY_PAGE, PagedKv
from attnfuzz.kernels.plan import Row
from attnfuzz.kernels.results import Results
from attnfuzz.kernels.workspace import SharedWorkspace
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import Case
from attnfuzz.reference.geometry import KvLayout, Latent

_MODULE = "flashinfer.mla"
_WRAPPER = "BatchMLAPagedAttentionWrapper"
_LISTS = ("qo_indptr", "kv_indptr", "kv_indices", "kv_len_arr")


def _plan(*, wrapper: Any, held: frozenset[str], **arguments: Any) -> None:
    """Plan a wrapper for the lists of a batch. The arguments in `held` are for the record: it has them already."""
    metadata = flashinfer_op.call(_MODULE, "MLAPlanMetadata.csr", **{name: arguments[name] for name in _LISTS})
    told = {name: value for name, value in arguments.items() if name not in held.union(_LISTS)}
    try:
        flashinfer_op.call_method(wrapper, "plan", metadata=metadata, **told)
    except ValueError as error:
        # FlashInfer's "backend preflight rejection before launch" (mla/_batch_mla/_backends/_capabilities.py).
        if type(error).__name__ == "_BackendPlanUnsupportedError":
            raise Unsupported(f"FlashInfer refuses the plan: {error}") from error
        raise


def _buffer(name: str) -> str:
    """What a launch calls the buffer of a graph that a list is copied to."""
    return f"{name}_buf"


MLA_PLAN = Op(f"{_WRAPPER}.plan", _plan, frozenset({"float_workspace_buffer", *map(_buffer, _LISTS)}), _MODULE)
"""It copies to the device, and the lists of a batch into a graph's buffers."""
MLA_RUN = Op(f"{_WRAPPER}.run", run, frozenset({"out", "lse", "float_workspace_buffer"}), _MODULE)
"""Of query [tokens, heads, rank + rope], kv_cache [pages, page, rank + rope], out [tokens, heads, rank], lse [tokens,
heads] in base 2, and what the wrapper holds."""


@dataclass(frozen=True)
class MlaBatch:
    """A batch to plan for: each request's queries, keys, and pages, of which it has ceil(keys / page size)."""

    q_lens: Sequence[int]
    kv_lens: Sequence[int]
    pages: Sequence[Sequence[int]]

    @classmethod
    def of(cls, rows: Sequence[Row], kv: PagedKv) -> "MlaBatch":
        """The rows of a batch; what they may read beyond the pages that they own is the dummy page."""
        pages = []
        for row in rows:
            owned = kv.pages[row.slot][: -(-row.owned // kv.page_size)] if row.slot is not None else []
            reach = -(-row.kv_len // kv.page_size)
            pages.append(owned + [DUMMY_PAGE] * (reach - len(owned)))
        return cls([row.q_len for row in rows], [row.kv_len for row in rows], pages)

    def place(self, bench: Bench) -> dict[str, torch.Tensor]:
        """What a wrapper is planned on, int32: indptrs [batch + 1], kv_indices [pages], kv_len_arr [batch]."""
        lists: dict[str, Sequence[int]] = {
            "qo_indptr": running_sum(self.q_lens),
            "kv_indptr": running_sum(len(pages) for pages in self.pages),
            "kv_indices": list(chain.from_iterable(self.pages)),
            "kv_len_arr": self.kv_lens,
        }
        return {name: place_int32(bench, name, values) for name, values in lists.items()}


@dataclass(frozen=True)
class StaticSize:
    """The largest batch of a graph: how many requests every plan of it has, and at most how many pages."""

    requests: int
    pages: int

    def buffers(self, bench: Bench) -> dict[str, torch.Tensor]:
        """Buffers for the lists of such plans, int32. What a plan leaves of the page ids stays poison."""
        sizes = {
            "qo_indptr": self.requests + 1,
            "kv_indptr": self.requests + 1,
            "kv_indices": self.pages,
            "kv_len_arr": self.requests,
        }
        return {name: bench.memory.tensor(_buffer(name), (size,), torch.int32) for name, size in sizes.items()}


class MlaWrapper:
    """A wrapper of `backend`, fa2 or fa3, with its workspace and metadata in guarded memory.

    With `static` it is made for a CUDA graph: a capture records `launch`, and `plan` goes before each replay and copies
    metadata to buffers that stay. All plans must then have as many requests (FlashInfer, docstring of the constructor:
    the captured batch shape cannot change). What it keeps in its integer workspace is FlashInfer's own allocation.
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
        self._wrapper = flashinfer_op.call(
            self.module, _WRAPPER, backend=backend, **self._workspace, **self._buffers, **graph
        )

    def plan(self, batch: MlaBatch, sm_scale: float) -> None:
        """Plan causal attention of a batch of at least one request: FlashInfer plans no empty one.

        Raises Unsupported for a batch that FlashInfer refuses: on FA2 some lengths would lose keys at a tile's edge.
        """
        geometry = self._case.geometry
        self._planned = batch.place(self._bench)
        held = {**self._workspace, **{_buffer(name): tensor for name, tensor in self._buffers.items()}}
        self._bench.launcher.launch(
            MLA_PLAN,
            wrapper=self._wrapper,
            held=frozenset(held),
            **held,
            **self._planned,
            num_heads=geometry.q_heads,
            head_dim_ckv=self._latent.rank,
            head_dim_kpe=self._latent.rope,
            page_size=geometry.page_size,
            causal=True,
            sm_scale=sm_scale,
            q_data_type=geometry.dtype.torch_dtype,
            kv_data_type=geometry.kv_dtype.torch_dtype,
            lse_mode="base2",
        )

    def launch(self, query: torch.Tensor, kv_cache: torch.Tensor, results: Results) -> None:
        """Run on queries [tokens, heads, rank + rope] and a pool that has one head, in either layout.

        What the wrapper holds is on record as well: it is read, and may be what a fault hits.
        """
        head_axis = 1 if self._case.geometry.kv_layout is KvLayout.HND else 2
        # A graph's buffers stand for what was copied to them.
        held = {**self._workspace, **(self._buffers or self._planned)}
        self._bench.launcher.launch(
            MLA_RUN,
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
    """The float workspace: two partial outputs of 64 rows per multiprocessor, in 16 bits, and their LSE.

    scheduler.cuh (MLAPlan, partial_o and partial_lse); a smaller one is refused when it is planned.
    """
    rows = 2 * 64 * processors
    return rows * latent.rank * 2 + rows * 4


def modules_of(bucket: Bucket, backend: str) -> tuple[Module, ...]:
    """The one module of a bucket's dtypes and latent."""
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
