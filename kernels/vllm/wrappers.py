"""Stand-ins for FlashInfer's wrappers in a release's modules: they store a plan, and run it on native kernels.

A plan copies the lengths of its batch to the wrapper's workspace, which kernels read in addition to the batch's
tensors. In a graph all of these are buffers at fixed addresses: a replay reads their current contents, so a plan that
was not made for the batch is detected. Scalars are those of the last plan; in a graph, those of its capture.
"""

import ctypes
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.ops import trtllm_batch_context_with_kv_cache
from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.stand_ins import FAST_PLAN, current

_HOPPER: Final = (9, 0)


def _lengths(indptr: torch.Tensor, last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return the lengths of requests from their numbers of pages (flashinfer/page.py, get_seq_lens)."""
    return (indptr.diff() - 1).clamp(min=0) * page_size + last_page_len


def _page_ids(indices: torch.Tensor, begin: int, count: int) -> torch.Tensor:
    """Return `count` page ids from index `begin` on, read by address as a kernel does, even past the end."""
    ids = (ctypes.c_int32 * count).from_address(indices.data_ptr() + begin * indices.itemsize)
    return torch.tensor(ids[:], dtype=torch.int32)


def attend(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    qo_indptr: torch.Tensor,
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    planned_indptr: torch.Tensor,
    planned_lengths: torch.Tensor,
    page_size: int,
    by_plan: bool,
    **layer: Any,
) -> None:
    """Attend to a paged cache as FlashInfer's kernels of a planned batch do; all metadata is int32 on the device.

    Request b has the rows of `query` from qo_indptr[b] on, and the pages of `indices` from indptr[b] on; its last page
    has last_page_len[b] keys. FA3 takes lengths and pages from its plan alone (`by_plan`). FA2 takes them from the
    batch, but sees no page beyond the planned ones, which make up its chunks of keys (FlashInfer 0.7.2:
    include/flashinfer/attention/scheduler.cuh and prefill.cuh). `layer` are arguments of the native kernel.
    """
    if by_plan:
        indptr, lengths = planned_indptr, planned_lengths
    else:
        planned = (planned_lengths + page_size - 1) // page_size * page_size
        lengths = torch.minimum(_lengths(indptr, last_page_len, page_size), planned)
    counts = ((lengths + page_size - 1) // page_size).tolist()
    table = torch.zeros(len(counts), max(counts, default=0), dtype=torch.int32)
    for row, (begin, count) in enumerate(zip(indptr.tolist()[:-1], counts, strict=True)):
        table[row, :count] = _page_ids(indices, begin, count)
    trtllm_batch_context_with_kv_cache(
        # The output's dtype can represent every float8.
        query=query if query.itemsize > 1 else query.to(out.dtype),
        kv_cache=kv_cache,
        workspace_buffer=query,
        block_tables=table,
        seq_lens=lengths,
        max_q_len=0,
        max_kv_len=0,
        batch_size=len(counts),
        cum_seq_lens_q=qo_indptr,
        cum_seq_lens_kv=indptr,
        out=out,
        **layer,
    )


class _Wrapper:
    """Base class of the wrappers. `owner` is the class of FlashInfer that has the methods."""

    owner: str
    _use_cuda_graph: bool
    _kv_layout: str
    _backend: str
    _qo_indptr_buf: torch.Tensor
    _paged_kv_indptr_buf: torch.Tensor
    _paged_kv_indices_buf: torch.Tensor
    _paged_kv_last_page_len_buf: torch.Tensor
    _planned_indptr: torch.Tensor
    _planned_lengths: torch.Tensor
    _window_left: int
    _logits_soft_cap: float
    _sm_scale: float | None
    _causal: bool

    def _given(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], owner: str = "") -> dict[str, Any]:
        """Return the arguments of a method by name, bound to the signature that the release pins, with defaults."""
        name = f"{owner or self.owner}.{method}"
        bound = current(name).bound(name, (self, *args), kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _keep(self, given: dict[str, Any], lengths: torch.Tensor, indptr: torch.Tensor) -> None:
        """Store a plan's lengths [batch] and indptr [batch + 1], both on the host, and its scalars."""
        for name, value in (("_planned_lengths", lengths), ("_planned_indptr", indptr)):
            kept = getattr(self, name, None)
            if self._use_cuda_graph and kept is not None:
                kept.copy_(value)
            else:
                setattr(self, name, value.to(torch.int32).clone())
        self._window_left, self._sm_scale = given["window_left"], given["sm_scale"]
        self._logits_soft_cap = given["logits_soft_cap"] or 0.0
        self._page_size = given["page_size"]
        self._dtypes = (given["q_data_type"], given["kv_data_type"] or given["q_data_type"])

    @property
    def _by_plan(self) -> bool:
        """Whether the plan is FA3's (flashinfer/utils.py, determine_attention_backend)."""
        same = self._dtypes[0] == self._dtypes[1]
        return self._backend != "fa2" and same and torch.cuda.get_device_capability() == _HOPPER

    def _launch(self, given: dict[str, Any], out_dtype: torch.dtype, scale: float, **more: Any) -> Any:
        query, cache, out, lse = given["q"], given["paged_kv_cache"], given["out"], given["lse"]
        if given["return_lse"]:
            out = torch.empty(query.shape, dtype=out_dtype) if out is None else out
            lse = more["lse"] = torch.empty(query.shape[:2], dtype=torch.float32) if lse is None else lse
        pool = cache if isinstance(cache, torch.Tensor) else cache[0]
        for name, found, due in zip(("q", "kv", "out"), (query, pool, out), (*self._dtypes, out_dtype), strict=True):
            if found.dtype != due:
                raise ValueError(f"{name} is {found.dtype}, but the wrapper was planned for {due}")
        if out.shape != query.shape:
            raise ValueError(f"out is {tuple(out.shape)}, and q {tuple(query.shape)}")
        name = f"{self.owner}.run"
        current(name).launch(
            Op(name, attend, frozenset({"out", "lse"} & {"out", *more}), own=True),
            {
                "out": out,
                "query": query,
                "kv_cache": cache,
                "qo_indptr": self._qo_indptr_buf,
                "indptr": self._paged_kv_indptr_buf,
                "indices": self._paged_kv_indices_buf,
                "last_page_len": self._paged_kv_last_page_len_buf,
                "planned_indptr": self._planned_indptr,
                "planned_lengths": self._planned_lengths,
                "page_size": self._page_size,
                "by_plan": self._by_plan,
                "bmm1_scale": scale,
                "bmm2_scale": given["v_scale"] or 1.0,
                "window_left": self._window_left,
                "kv_layout": self._kv_layout,
                "causal": self._causal,
                **more,
            },
        )
        assert isinstance(out, torch.Tensor)
        return (out, lse) if given["return_lse"] else out

    def _scale(self, given: dict[str, Any]) -> float:
        """Return the factor of logits, with the scales of queries and keys of any dtype (0.7.2: decode.py:2907)."""
        factor = self._sm_scale if self._sm_scale is not None else given["q"].shape[-1] ** -0.5
        for name in ("q_scale", "k_scale"):
            factor *= 1.0 if given[name] is None else given[name]
        return factor


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    """Stand-in for FlashInfer's prefill wrapper, which no server has in a graph."""

    owner = "BatchPrefillWithPagedKVCacheWrapper"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = self._given("__init__", args, kwargs, type(self).__name__)
        self._kv_layout, self._backend, self._use_cuda_graph = given["kv_layout"], given["backend"], False
        if given["use_cuda_graph"]:
            raise NotImplementedError("a prefill wrapper in a graph has no stand-in")

    def plan(self, *args: Any, **kwargs: Any) -> None:
        """Plan a batch. Tensors of the host are copied to the device; those of the device stay where they are."""
        given = self._given("plan", args, kwargs)
        indptr, last = given["paged_kv_indptr"], given["paged_kv_last_page_len"]
        with outside():
            lengths = _lengths(indptr, last, given["page_size"]) if given["seq_lens"] is None else given["seq_lens"]
            self._keep(given, lengths, indptr)
            self._qo_indptr_buf = given["qo_indptr"].clone()
            self._paged_kv_indptr_buf, self._paged_kv_last_page_len_buf = indptr.clone(), last.clone()
        self._paged_kv_indices_buf = given["paged_kv_indices"]
        self._causal, self._out_dtype = given["causal"], given["o_data_type"] or given["q_data_type"]

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan on queries [tokens, heads, dim]."""
        given = self._given("run", args, kwargs)
        return self._launch(given, self._out_dtype, self._scale(given))


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """Stand-in for FlashInfer's prefill wrapper with sinks, which `run` takes with the factor of logits."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan on queries [tokens, heads, dim] with sinks [heads]."""
        given = self._given("run", args, kwargs)
        sinks, scale = given["args"]
        return self._launch(given, self._out_dtype, scale, sinks=sinks)


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    """Stand-in for FlashInfer's decode wrapper, which may be in a graph."""

    owner = "BatchDecodeWithPagedKVCacheWrapper"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = self._given("__init__", args, kwargs)
        self._kv_layout, self._backend = given["kv_layout"], given["backend"]
        self._use_cuda_graph = given["use_cuda_graph"]
        if self._use_cuda_graph:
            self._paged_kv_indptr_buf = given["paged_kv_indptr_buffer"]
            self._paged_kv_indices_buf = given["paged_kv_indices_buffer"]
            self._paged_kv_last_page_len_buf = given["paged_kv_last_page_len_buffer"]

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether the wrapper is for a graph."""
        return bool(self._use_cuda_graph)

    def plan(self, *args: Any, **kwargs: Any) -> None:
        """Plan a batch; in a graph, copy its metadata to the buffers."""
        given = self._given("plan", args, kwargs)
        lengths = self._begin(given, given["seq_lens"])
        stride = given.get("q_len_per_req", 1)
        if stride > 1 and int(lengths.min()) < stride:
            # 0.7.2: decode.py:2182
            raise ValueError(f"q_len_per_req={stride} requires kv_len >= q_len_per_req for every request")
        indptr, indices, last = given["indptr"], given["indices"], given["last_page_len"]
        with outside():
            if self._use_cuda_graph:
                self._paged_kv_indptr_buf.copy_(indptr)
                self._paged_kv_last_page_len_buf.copy_(last)
                self._paged_kv_indices_buf[: len(indices)].copy_(indices)
            else:
                self._paged_kv_indptr_buf, self._paged_kv_last_page_len_buf = indptr.clone(), last.clone()
                self._paged_kv_indices_buf = indices
        self._out_dtype = given["o_data_type"] or given["q_data_type"]

    def fast_plan(self, given: dict[str, Any]) -> None:
        """Plan a batch whose metadata is already in the buffers (flashinfer/decode.py, fast_decode_plan)."""
        assert self._use_cuda_graph, "fast_decode_plan only has a stand-in for graphs"
        planned = getattr(self, "_q_len", None)
        if planned is not None and planned != given.get("q_len_per_req", 1):
            raise ValueError(f"this wrapper was planned with q_len_per_req={planned}")
        self._begin(given, None)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan on queries [batch * q_len_per_req, heads, dim]. Sinks are ignored, as by FA2 and FA3."""
        given = self._given("run", args, kwargs)
        if given["q"].shape[0] != self._q_len * len(self._planned_lengths):
            raise ValueError(f"q has {given['q'].shape[0]} rows, but {self._q_len} per request were planned")
        return self._launch(given, self._out_dtype, self._scale(given))

    def _begin(self, given: dict[str, Any], lengths: torch.Tensor | None) -> torch.Tensor:
        """Check a batch and store its plan. Returns its lengths."""
        indptr, indices, last = given["indptr"], given["indices"], given["last_page_len"]
        batch, stride = len(last), given.get("q_len_per_req", 1)
        if self._use_cuda_graph and batch != len(self._paged_kv_last_page_len_buf):
            raise ValueError(f"a batch of {batch} in a graph of {len(self._paged_kv_last_page_len_buf)}")
        if self._use_cuda_graph and len(indices) > len(self._paged_kv_indices_buf):
            raise ValueError(f"{len(indices)} pages for a buffer of {len(self._paged_kv_indices_buf)}")
        with outside():
            if lengths is None:
                lengths = _lengths(indptr, last, given["page_size"])
            self._keep(given, lengths, indptr)
            self._qo_indptr_buf = torch.arange(batch + 1, dtype=torch.int32) * stride
        self._q_len, self._causal = stride, True
        return lengths


def fast_decode_plan(wrapper: BatchDecodeWithPagedKVCacheWrapper, *args: Any, **kwargs: Any) -> None:
    """Stand in for FlashInfer's function of that name."""
    bound = current(FAST_PLAN).bound(FAST_PLAN, (wrapper, *args), kwargs)
    bound.apply_defaults()
    wrapper.fast_plan(bound.arguments)


REPLACED: Final = {
    each.__name__: each
    for each in (
        BatchAttentionWithAttentionSinkWrapper,
        BatchDecodeWithPagedKVCacheWrapper,
        BatchPrefillWithPagedKVCacheWrapper,
        fast_decode_plan,
    )
}
"""The stand-ins, by the names that the backend's module imports (0.33.0: v1/attention/backends/flashinfer.py:12)."""
