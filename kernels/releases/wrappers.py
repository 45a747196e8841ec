"""Stand-ins for FlashInfer's wrappers in a release's modules: they store a plan, and run it on native kernels.

A plan copies the lengths of its batch to the wrapper's workspace, which kernels read in addition to the batch's
tensors. In a graph all of these are buffers at fixed addresses: a replay reads their current contents, so a plan that
was not made for the batch is detected. Scalars are those of the last plan; in a graph, those of its capture.

An engine derives classes of its own where it plans with metadata on the device, which wrappers do not copy
(`copies_metadata`).
"""

import ctypes
from contextlib import nullcontext, suppress
from typing import Any, ClassVar, Final

import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.releases.planned_runs import PAGED_RUNS, check_rows, lengths_of_pages
from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.stand_ins import FAST_PLAN, current

_HOPPER: Final = (9, 0)

_BYTE: Final = 8

_GEOMETRY: Final = "query heads, KV heads, head dim and page size"

_TOKENS: Final = 3
"""Axes of a pool of tokens [token, head, dim]; a paged pool has one more."""

_COUNTS_ROWS: Final = Version("0.6.7.post2")
"""The first FlashInfer whose wrappers compare the rows of queries with those of the plan."""

_DIVIDES_ROWS: Final = Version("0.7.0.post1")
"""The first FlashInfer whose decode wrapper compares their quotient with the rows of a request (decode.py:2853)."""


def pack(mask: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack a mask, with the rows and keys of each request in order, into bits as FlashInfer's segment_packbits does.

    Each of the `counts` of requests begins with a byte. Returns uint8 bits, and int32 starts in bytes [batch + 1]. The
    mask is read by address, even past its end.
    """
    total = int(counts.sum())
    flags = torch.tensor((ctypes.c_uint8 * total).from_address(mask.contiguous().data_ptr())[:], dtype=torch.uint8) != 0
    parts = [_bits(part) for part in flags.split(counts.tolist())]
    starts = torch.tensor([0, *(len(part) for part in parts)], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return torch.cat(parts), starts


def _keys_of_masks(indptr: torch.Tensor, last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return the numbers of keys [batch] that a mask has (flashinfer/prefill.py, _compute_page_mask_indptr).

    A request without pages has none if its last page is full, where `lengths_of_pages` returns the length of that page.
    With another last page, FlashInfer computes a negative number; no planner passes one.
    """
    return ((indptr.diff() - 1) * page_size + last_page_len).clamp(min=0)


def _bits(flags: torch.Tensor) -> torch.Tensor:
    padded = torch.nn.functional.pad(flags, (0, -len(flags) % _BYTE)).view(-1, _BYTE)
    return (padded << torch.arange(_BYTE)).sum(dim=1).to(torch.uint8)


class PlannedWrapper:
    """Base class of the wrappers.

    `owner` is the class of FlashInfer that has the methods, and `made_as` that which is made, if it is another.
    With `copies_metadata`, plans get metadata on the host, and copy it to the device; otherwise it is on the device,
    and plans keep references.
    """

    owner: str
    made_as: str = ""
    copies_metadata: ClassVar[bool] = True
    _captured: tuple[int, ...] = ()
    """The geometry of the last run, which a graph keeps: a plan for another one divides its work wrongly."""
    _custom_mask_buf: torch.Tensor | None = None
    _mask_indptr_buf: torch.Tensor | None = None
    _planned_window: int
    _qo_indptr_last: int
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
        self.keep_lengths(lengths, indptr)
        self._window_left, self._sm_scale = given["window_left"], given["sm_scale"]
        self._planned_window = given["window_left"]
        self._logits_soft_cap = given["logits_soft_cap"] or 0.0
        self._page_size = given["page_size"]
        dim = given["head_dim"] if "head_dim" in given else given["head_dim_qk"]
        self._geometry = (given["num_qo_heads"], given["num_kv_heads"], dim, self._page_size)
        if self._use_cuda_graph and (self._captured or self._geometry) != self._geometry:
            raise ValueError(f"the plan's {_GEOMETRY} are {self._geometry}, but its graph has runs of {self._captured}")
        self._dtypes = (given["q_data_type"], given["kv_data_type"] or given["q_data_type"])

    def keep_lengths(self, lengths: torch.Tensor, indptr: torch.Tensor) -> None:
        """Store a plan's lengths [batch] and indptr [batch + 1], both on the host."""
        for name, value in (("_planned_lengths", lengths), ("_planned_indptr", indptr)):
            kept = getattr(self, name, None)
            if self._use_cuda_graph and kept is not None:
                kept.copy_(value)
            else:
                setattr(self, name, value.to(torch.int32).clone())

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether the wrapper is for a graph."""
        return bool(self._use_cuda_graph)

    def _on_device(self, metadata: torch.Tensor) -> torch.Tensor:
        return metadata.clone() if self.copies_metadata else metadata

    def _as_set(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Set the scalars of a call of `forward` or `forward_return_lse`, which replace those of the plan."""
        given = self._given(method, args, kwargs)
        self._causal = given.get("causal", getattr(self, "_causal", True))
        self._window_left, self._sm_scale = given["window_left"], given["sm_scale"]
        self._logits_soft_cap = given["logits_soft_cap"] or 0.0
        return given

    def _since(self, first: Version) -> bool:
        """Return whether the release's FlashInfer is this version or a later one."""
        version = current(self.owner).flashinfer
        return version is None or version >= first

    def _refused(self, rows: int) -> dict[str, int]:
        """Return the rows that a plan is for, unless a run takes queries of this number of rows."""
        accepted = not self._since(_COUNTS_ROWS) or rows == self._qo_indptr_last
        return {} if accepted else {"planned_rows": self._qo_indptr_last}

    @property
    def _window(self) -> int:
        """The window of a run. Kernels are compiled with windows, or without, for a plan (attention/variants.cuh)."""
        return self._window_left if self._planned_window >= 0 else -1

    @property
    def _by_plan(self) -> bool:
        """Whether the plan is FA3's (flashinfer/utils.py, determine_attention_backend)."""
        same = self._dtypes[0] == self._dtypes[1]
        return self._backend != "fa2" and same and torch.cuda.get_device_capability() == _HOPPER

    def _launch(self, given: dict[str, Any], out_dtype: torch.dtype, scale: float, **more: Any) -> Any:
        query, cache, out, lse = given["q"], self._in_pages(given["paged_kv_cache"]), given["out"], given["lse"]
        if self._logits_soft_cap:
            raise NotImplementedError("no stand-in of FlashInfer's wrappers has soft caps")
        out = torch.empty(query.shape, dtype=out_dtype) if out is None else out
        if given["return_lse"]:
            lse = more["lse"] = torch.empty(query.shape[:2], dtype=torch.float32) if lse is None else lse
        pool = cache if isinstance(cache, torch.Tensor) else cache[0]
        for name, found, due in zip(("q", "kv", "out"), (query, pool, out), (*self._dtypes, out_dtype), strict=True):
            if found.dtype != due:
                raise ValueError(f"{name} is {found.dtype}, but the wrapper was planned for {due}")
        self._check_geometry(query, pool)
        if out.shape != query.shape:
            raise ValueError(f"out is {tuple(out.shape)}, and q {tuple(query.shape)}")
        op = PAGED_RUNS[f"{self.owner}.run"]
        arguments = {
            "out": out,
            "q": query,
            "paged_kv_cache": cache,
            "qo_indptr": self._qo_indptr_buf,
            "paged_kv_indptr": self._paged_kv_indptr_buf,
            "paged_kv_indices": self._paged_kv_indices_buf,
            "paged_kv_last_page_len": self._paged_kv_last_page_len_buf,
            "planned_indptr": self._planned_indptr,
            "planned_lengths": self._planned_lengths,
            "page_size": self._page_size,
            "sm_scale": scale,
            "causal": self._causal,
            "kv_layout": self._kv_layout,
            **({"by_plan": True} if self._by_plan else {}),
            **({"v_scale": given["v_scale"]} if given["v_scale"] else {}),
            **({"window_left": self._window} if self._window >= 0 else {}),
            **({} if self._custom_mask_buf is None else self._masks()),
            **more,
        }
        self._run(op, arguments)
        assert isinstance(out, torch.Tensor)
        return (out, lse) if given["return_lse"] else out

    def _run(self, op: Op, arguments: dict[str, Any]) -> None:
        """Launch a run. Raises ValueError for other rows than planned: FlashInfer refuses them, and no kernel does."""
        planned, rows = arguments.get("planned_rows"), arguments["q"].shape[0]
        with nullcontext() if planned is None else suppress(ValueError):
            # One that is refused is launched for the record.
            current(op.name).launch(op, arguments)
        check_rows(rows, rows if planned is None else planned)

    def _check_geometry(self, query: torch.Tensor, pool: torch.Tensor) -> None:
        """Raise ValueError for other heads, dims or pages than planned, for which kernels and chunks are chosen."""
        heads, slots = (-2, -3) if self._kv_layout == "NHD" else (-3, -2)
        found = (query.shape[1], pool.shape[heads], query.shape[2], pool.shape[slots])
        if found != self._geometry:
            raise ValueError(f"{_GEOMETRY} are {found}, but the wrapper was planned for {self._geometry}")
        self._captured = found

    def _in_pages(self, cache: Any) -> Any:
        """Return a pool of tokens as one of pages of one token (flashinfer/utils.py, _expand_4d)."""
        if isinstance(cache, torch.Tensor) or cache[0].ndim != _TOKENS:
            return cache
        return tuple(part.unsqueeze(1 if self._kv_layout == "NHD" else 2) for part in cache)

    def _masks(self) -> dict[str, Any]:
        return {"packed_custom_mask": self._custom_mask_buf, "mask_indptr": self._mask_indptr_buf}

    def _scale(self, given: dict[str, Any]) -> float:
        """Return the factor of logits, with the scales of queries and keys of any dtype (0.7.2: decode.py:2907)."""
        factor = self._sm_scale if self._sm_scale is not None else given["q"].shape[-1] ** -0.5
        for name in ("q_scale", "k_scale"):
            factor *= 1.0 if given.get(name) is None else given[name]
        return factor


class BatchPrefillWithPagedKVCacheWrapper(PlannedWrapper):
    """Stand-in for FlashInfer's prefill wrapper, which may be in a graph."""

    owner = "BatchPrefillWithPagedKVCacheWrapper"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = self._given("__init__", args, kwargs, self.made_as)
        self._kv_layout, self._backend = given["kv_layout"], given["backend"]
        self._use_cuda_graph = given["use_cuda_graph"]
        if self._use_cuda_graph:
            self._qo_indptr_buf, self._paged_kv_indptr_buf = given["qo_indptr_buf"], given["paged_kv_indptr_buf"]
            self._paged_kv_indices_buf = given["paged_kv_indices_buf"]
            self._paged_kv_last_page_len_buf = given["paged_kv_last_page_len_buf"]
            self._custom_mask_buf, self._mask_indptr_buf = given["custom_mask_buf"], given["mask_indptr_buf"]

    def plan(self, *args: Any, **kwargs: Any) -> None:
        """Plan a batch; in a graph, copy its metadata to the buffers."""
        given = self._given("plan", args, kwargs)
        starts, indptr, last = given["qo_indptr"], given["paged_kv_indptr"], given["paged_kv_last_page_len"]
        indices = given["paged_kv_indices"]
        with outside():
            if self._use_cuda_graph:
                self._check_buffers(starts, indices)
            lengths = (
                lengths_of_pages(indptr, last, given["page_size"]) if given["seq_lens"] is None else given["seq_lens"]
            )
            self._keep(given, lengths, indptr)
            self._qo_indptr_last = int(starts[-1])
            mask = given["custom_mask"]
            packed = (
                None if mask is None else pack(mask, starts.diff() * _keys_of_masks(indptr, last, given["page_size"]))
            )
            if self._use_cuda_graph:
                self._fill(starts, indptr, indices, last, packed)
            else:
                self._qo_indptr_buf, self._paged_kv_indptr_buf = self._on_device(starts), self._on_device(indptr)
                self._paged_kv_last_page_len_buf, self._paged_kv_indices_buf = self._on_device(last), indices
                self._custom_mask_buf, self._mask_indptr_buf = packed or (None, None)
        self._causal, self._out_dtype = given["causal"], given["o_data_type"] or given["q_data_type"]

    begin_forward = plan

    def _check_buffers(self, starts: torch.Tensor, indices: torch.Tensor) -> None:
        """Raise ValueError for a batch that a graph can't hold."""
        if len(starts) != len(self._qo_indptr_buf):
            raise ValueError(f"a batch of {len(starts) - 1} in a graph of {len(self._qo_indptr_buf) - 1}")
        if len(indices) > len(self._paged_kv_indices_buf):
            raise ValueError(f"{len(indices)} pages for a buffer of {len(self._paged_kv_indices_buf)}")
        self._max_total_num_rows = getattr(self, "_max_total_num_rows", None) or int(starts[-1])
        if int(starts[-1]) > self._max_total_num_rows:
            raise ValueError(f"{int(starts[-1])} rows in a graph of {self._max_total_num_rows}")

    def _fill(
        self,
        starts: torch.Tensor,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last: torch.Tensor,
        packed: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> None:
        """Copy a batch to the buffers of a graph. Without a mask, those of an earlier one stay."""
        self._qo_indptr_buf.copy_(starts)
        self._paged_kv_indptr_buf.copy_(indptr)
        self._paged_kv_last_page_len_buf.copy_(last)
        self._paged_kv_indices_buf[: len(indices)].copy_(indices)
        if packed is not None:
            if self._custom_mask_buf is None or self._mask_indptr_buf is None:
                raise ValueError("custom_mask_buf must be initialized in cuda graph mode")
            self._custom_mask_buf[: len(packed[0])].copy_(packed[0])
            self._mask_indptr_buf.copy_(packed[1])

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan on queries [tokens, heads, dim]."""
        given = self._given("run", args, kwargs)
        return self._launch(given, self._out_dtype, self._scale(given), **self._refused(given["q"].shape[0]))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan with other scalars."""
        given = self._as_set("forward", args, kwargs)
        return self.run(given["q"], given["paged_kv_cache"], k_scale=given["k_scale"], v_scale=given["v_scale"])

    def forward_return_lse(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan with other scalars. Returns out and LSE [tokens, heads] in base 2."""
        given = self._as_set("forward_return_lse", args, kwargs)
        scales = {"k_scale": given["k_scale"], "v_scale": given["v_scale"]}
        return self.run(given["q"], given["paged_kv_cache"], **scales, return_lse=True)


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """Stand-in for FlashInfer's prefill wrapper with sinks, which `run` takes with the factor of logits."""

    made_as = "BatchAttentionWithAttentionSinkWrapper"

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan on queries [tokens, heads, dim] with sinks [heads]."""
        given = self._given("run", args, kwargs)
        sinks, scale = given["args"]
        return self._launch(given, self._out_dtype, scale, sinks=sinks)


class BatchDecodeWithPagedKVCacheWrapper(PlannedWrapper):
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
                self._paged_kv_indptr_buf, self._paged_kv_last_page_len_buf = (
                    self._on_device(indptr),
                    self._on_device(last),
                )
                self._paged_kv_indices_buf = indices
        self._out_dtype = given["o_data_type"] or given["q_data_type"]

    begin_forward = plan

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan with other scalars."""
        given = self._as_set("forward", args, kwargs)
        scales = {name: given[name] for name in ("q_scale", "k_scale", "v_scale")}
        return self.run(given["q"], given["paged_kv_cache"], **scales)

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
        rows, batch = given["q"].shape[0], len(self._planned_lengths)
        self._qo_indptr_last = self._q_len * batch
        accepted = self._since(_DIVIDES_ROWS) and (not batch or rows // batch == self._q_len)
        refused = {} if accepted else self._refused(rows)
        return self._launch(given, self._out_dtype, self._scale(given), **refused)

    def _begin(self, given: dict[str, Any], lengths: torch.Tensor | None) -> torch.Tensor:
        """Check a batch and store its plan. Returns its lengths."""
        indptr, indices, last = given["indptr"], given["indices"], given["last_page_len"]
        batch, stride = len(last), given.get("q_len_per_req", 1)
        if self._use_cuda_graph and batch != len(self._paged_kv_last_page_len_buf):
            raise ValueError(f"a batch of {batch} in a graph of {len(self._paged_kv_last_page_len_buf)}")
        if self._use_cuda_graph and len(indices) > len(self._paged_kv_indices_buf):
            raise ValueError(f"{len(indices)} pages for a buffer of {len(self._paged_kv_indices_buf)}")
        with outside():
            host = given.get("global_override_indptr_cpu")
            host = indptr if host is None else host
            if lengths is None:
                lengths = lengths_of_pages(host, last, given["page_size"])
            self._keep(given, lengths, host)
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
