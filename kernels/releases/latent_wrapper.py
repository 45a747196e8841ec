"""A stand-in for FlashInfer's wrapper of latent attention, whose kernels take all metadata but page ids from the plan.

A file and line is that of FlashInfer 0.7.4.
"""

from typing import Any, Final

import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.ops import trtllm_batch_context_with_kv_cache
from attnfuzz.kernels.releases.flash_attention import latents_of
from attnfuzz.kernels.releases.planned_runs import page_ids
from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.stand_ins import current
from attnfuzz.kernels.releases.wrappers import PlannedWrapper

_COUNTS_PAGES: Final = Version("0.7.0")
"""The first FlashInfer that compares a plan's lengths with its numbers of pages (mla/_batch_mla/_planning.py:131)."""

_LISTS: Final = ("qo_indptr", "kv_indptr", "kv_len_arr")
"""The lists that a plan copies to its workspace (include/flashinfer/attention/scheduler.cuh, MLAPlan)."""


def latent_run(
    *,
    out: torch.Tensor,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_len_arr: torch.Tensor,
    page_size: int,
    sm_scale: float,
    causal: bool,
    lse: torch.Tensor | None = None,
) -> None:
    """Attend to latents on pages as FlashInfer's FA2 and FA3 do; lists are int32, as they were planned.

    q_nope and out [rows, heads, rank], q_pe [rows, heads, rope], ckv_cache [pages, slots, rank] and kpe_cache [pages,
    slots, rope], which are parts of one cache. Request b has the rows from qo_indptr[b] on, kv_len_arr[b] keys, and the
    pages of `kv_indices` from kv_indptr[b] on. lse [rows, heads] is in base 2.
    """
    counts = ((kv_len_arr + page_size - 1) // page_size).tolist()
    table = torch.zeros(len(counts), max(counts, default=0), dtype=torch.int32)
    for row, (begin, count) in enumerate(zip(kv_indptr.tolist(), counts, strict=False)):
        table[row, :count] = page_ids(kv_indices, begin, count)
    trtllm_batch_context_with_kv_cache(
        query=torch.cat((q_nope, q_pe), dim=-1),
        kv_cache=(latents_of(kpe_cache, ckv_cache).unsqueeze(2), ckv_cache.unsqueeze(2)),
        workspace_buffer=q_nope,
        block_tables=table,
        seq_lens=kv_len_arr,
        max_q_len=0,
        max_kv_len=0,
        bmm1_scale=sm_scale,
        bmm2_scale=1.0,
        batch_size=len(counts),
        cum_seq_lens_q=qo_indptr,
        cum_seq_lens_kv=kv_indptr,
        window_left=-1,
        out=out,
        kv_layout="NHD",
        causal=causal,
        lse=lse,
    )


LATENT_RUN: Final = Op("BatchMLAPagedAttentionWrapper.run", latent_run, frozenset({"out", "lse"}))


class LatentWrapper(PlannedWrapper):
    """The wrapper, which may be in a graph. Its members are those that SGLang's own fast plans use.

    SGLang 0.5.23: layers/attention/flashinfer_mla_backend.py:1347, fast_mla_decode_plan.
    """

    owner = "BatchMLAPagedAttentionWrapper"
    _float_workspace_buffer = _int_workspace_buffer = _pin_memory_int_workspace_buffer = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = self._given("__init__", args, kwargs)
        self._use_cuda_graph = given["use_cuda_graph"]
        self._buffers = {name: given[name] for name in (*_LISTS, "kv_indices")} if self._use_cuda_graph else {}
        for name, buffer in self._buffers.items():
            setattr(self, f"_{name}_buf", buffer)
        self._planned: dict[str, torch.Tensor] = {}

    def plan(self, *args: Any, **kwargs: Any) -> None:
        """Plan a batch; in a graph, copy its lists to the buffers. Raises ValueError as FlashInfer does."""
        given = self._given("plan", args, kwargs)
        with outside():
            if self._since(_COUNTS_PAGES):
                _check_pages(given)
            for name, buffer in self._buffers.items():
                _copy(name, buffer, given[name])
            self._kv_indices = self._buffers.get("kv_indices", given["kv_indices"])
            self.keep_lists(*(given[name] for name in _LISTS))
        self._causal, self._page_size, self._sm_scale = given["causal"], given["page_size"], given["sm_scale"]
        self._dtypes = (given["q_data_type"], given["kv_data_type"])
        self._dims = (given["num_heads"], given["head_dim_ckv"], given["head_dim_kpe"])
        self._cached_module = _Module(self)

    def keep_lists(self, *lists: torch.Tensor) -> None:
        """Store the lists of a plan, in the order of its arguments; in a graph, at fixed addresses."""
        batch = len(lists[-1])
        for name, value in zip(_LISTS, lists, strict=True):
            # A plan has as many requests as lengths.
            used = value[: batch + (name != "kv_len_arr")].to(torch.int32)
            if self._use_cuda_graph and name in self._planned:
                self._planned[name].copy_(used)
            else:
                self._planned[name] = used.clone()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the plan on queries [rows, heads, rank] and [rows, heads, rope]. Returns out, or out and its LSE."""
        given = self._given("run", args, kwargs)
        names = ("q_nope", "q_pe", "ckv_cache", "kpe_cache")
        for name, due in zip(names, (*self._dtypes[:1] * 2, *self._dtypes[1:] * 2), strict=True):
            if given[name].dtype != due:
                raise ValueError(f"{name} is {given[name].dtype}, but the wrapper was planned for {due}")
        dims = (given["q_nope"].shape[1], given["ckv_cache"].shape[-1], given["kpe_cache"].shape[-1])
        if dims != self._dims:
            raise ValueError(f"heads, rank and rope are {dims}, but the wrapper was planned for {self._dims}")
        out, lse = given["out"], given["lse"]
        out = torch.empty_like(given["q_nope"]) if out is None else out
        if given["return_lse"] and lse is None:
            lse = torch.empty(out.shape[:2], dtype=torch.float32)
        arguments = {
            "out": out,
            **{name: given[name] for name in names},
            **self._planned,
            "kv_indices": self._kv_indices,
            "page_size": self._page_size,
            "sm_scale": self._sm_scale,
            "causal": self._causal,
            **({"lse": lse} if given["return_lse"] else {}),
        }
        current(LATENT_RUN.name).launch(LATENT_RUN, arguments)
        return (out, lse) if given["return_lse"] else out


class _Module:
    """The compiled module of a plan."""

    def __init__(self, wrapper: LatentWrapper) -> None:
        self._wrapper = wrapper

    def plan(self, *args: Any) -> None:
        """Plan rows, page offsets and lengths, which are int32 on the host (data/csrc/batch_mla_plan.cu:33)."""
        _, _, _, *lists, _, _, _ = args
        for name, value in zip(_LISTS, lists, strict=True):
            if value.dtype != torch.int32:
                raise RuntimeError(f"Inconsistency of Tensor type: {name} is {value.dtype}")
        with outside():
            self._wrapper.keep_lists(*lists)


def _check_pages(given: dict[str, Any]) -> None:
    lengths, offsets = given["kv_len_arr"], given["kv_indptr"]
    if len(offsets) != len(lengths) + 1 or len(given["qo_indptr"]) != len(offsets):
        # Flat lists of another number of requests are not compared (mla/_batch_mla/_planning.py:123).
        return
    size = given["page_size"]
    if int(offsets[-1]) > len(given["kv_indices"]):
        raise ValueError(
            f"kv_indices metadata has {len(given['kv_indices'])} entries but kv_indptr[-1] is {offsets[-1]}"
        )
    if not torch.equal((lengths.long() + size - 1) // size, offsets.diff().long()):
        raise ValueError("CSR metadata page counts in kv_indptr must equal ceil(kv_len_arr / page_size).")


def _copy(name: str, buffer: torch.Tensor, values: torch.Tensor) -> None:
    larger = name == "kv_indices"
    if len(values) > len(buffer) or (not larger and len(values) != len(buffer)):
        raise ValueError(f"{name} has {len(values)} elements, and its buffer in the graph {len(buffer)}")
    buffer[: len(values)].copy_(values)
