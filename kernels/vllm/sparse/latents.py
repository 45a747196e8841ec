"""A server's sparse attention with its kernel: the backend's own metadata builder and layer, over stand-ins.

A file and line below vllm/ is that of vLLM 0.33.0.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.sparse_latents import decode_lists, launch_attention
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.kernels.vllm.sparse.batch import PaddedBatch
from attnfuzz.kernels.vllm.sparse.planner import Activations, rows_in_batch
from attnfuzz.kernels.vllm.sparse.slot_lists import SlotLists
from attnfuzz.reference.sparse.case import KvFormat, SparseCase

RANK: Final = 512

SCALE: Final = 192**-0.5
"""That of the scores of queries before their projection, of 192 numbers."""

_GROUPS: Final = "vllm.v1.attention.backends.mla.index_group"


class AttendedLists(SlotLists):
    """The attention to lists of positions, over `cache` [pages, page_size, width].

    `out` bfloat16 [rows, heads, 512] is the layer's result. Rows of the last batch from `unpacked_from` on attend to
    packed latents that were unpacked to bfloat16 before.
    """

    def __init__(self, loaded: Any, case: SparseCase, bench: Bench, drafts: int, cache: torch.Tensor) -> None:
        self._packed = case.geometry.format is KvFormat.PACKED
        self._cache = cache
        super().__init__(loaded, case, bench, drafts)
        self.unpacked_from = len(self.lists)
        self.out = torch.zeros(len(self.lists), case.geometry.query_heads, RANK, dtype=torch.bfloat16)
        with self._running():
            self._layer = getattr(loaded.backend, loaded.kind.attention)(
                num_heads=case.geometry.query_heads,
                head_size=576,
                scale=SCALE,
                num_kv_heads=1,
                alibi_slopes=None,
                sliding_window=None,
                kv_cache_dtype=self._cache_dtype,
                logits_soft_cap=None,
                attn_type="decoder",
                kv_sharing_target_layer_name=None,
                topk_indices_buffer=self.lists,
                indexer=None,
                q_lora_rank=None,
                kv_lora_rank=RANK,
                qk_nope_head_dim=128,
                qk_rope_head_dim=64,
                qk_head_dim=192,
                v_head_dim=128,
                kv_b_proj=None,
            )

    @property
    def _cache_dtype(self) -> str:
        return "fp8_ds_mla" if self._packed else "auto"

    def _spec(self) -> dict[str, Any]:
        return (
            {"head_size": 656, "dtype": torch.uint8, "cache_dtype_str": "fp8_ds_mla"}
            if self._packed
            else super()._spec()
        )

    def _activations(self, inputs: OpInputs, batch: PaddedBatch) -> Activations:
        """Return positions and queries of each row; those of padding are finite."""
        made = super()._activations(inputs, batch)
        order = rows_in_batch(inputs, batch.order)
        query = torch.ones(len(made["positions"]), *inputs.queries.shape[1:], dtype=torch.bfloat16)
        query[: len(order)] = inputs.queries[order]
        return {**made, "query": query}

    def _forward(self, metadata: Any, given: Activations, *, full: bool) -> None:
        """Run the layer by the metadata of a batch; a forward without metadata attends to nothing."""
        del full
        if metadata is None:
            return
        count = metadata.num_actual_tokens
        unpacks = self._packed and not metadata.fp8_use_mixed_batch
        self.unpacked_from = metadata.num_decode_tokens if unpacks else count
        self.lists[:count].copy_(given["positions"][:count])
        query = given["query"][:count]
        out, _ = self._layer.forward_mqa((query[..., :RANK], query[..., RANK:]), self._cache, metadata, None)
        self.out[:count].copy_(out)

    @contextmanager
    def _running(self) -> Iterator[None]:
        backend, groups = self._loaded.backend, self._loaded.module(_GROUPS)
        stream = mock.MagicMock(name="stream")
        with ExitStack() as stack:
            stack.enter_context(super()._running())
            for name, function in _STAND_INS.items():
                if hasattr(backend, name):
                    stack.enter_context(mock.patch.object(backend, name, function))
            if hasattr(backend, "ops"):
                # vLLM's kernel (csrc/cache_kernels.cu).
                stack.enter_context(mock.patch.object(backend.ops, "concat_mla_q", _concatenate))
            # The layer imports it when it runs (v1/attention/backends/mla/flashinfer_mla_sparse.py:598).
            decode = self._loaded.module("flashinfer.decode")
            stack.enter_context(mock.patch.object(decode, "trtllm_batch_decode_with_kv_cache_mla", decode_lists))
            if hasattr(backend, "_get_workspace_buffer"):
                # Hundreds of MiB that no kernel here uses.
                scratch = torch.zeros(1, dtype=torch.int8)
                stack.enter_context(mock.patch.object(backend, "_get_workspace_buffer", return_value=scratch))
            # Streams run in order here.
            for name in ("_create_side_stream", "_create_event", "current_stream"):
                stack.enter_context(mock.patch.object(groups, name, return_value=stream))
            yield


def _concatenate(nope: torch.Tensor, rope: torch.Tensor, out: torch.Tensor) -> None:
    heads = nope.shape[1]
    out[:, :heads, : nope.shape[2]] = nope
    out[:, :heads, nope.shape[2] :] = rope


def _prefill(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    *,
    topk_length: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None, torch.Tensor]:
    if out is None:
        out = torch.empty(*q.shape[:2], RANK, dtype=q.dtype)
    launch_attention(q, kv, indices, out, sm_scale, None, topk_length)
    return out, None, torch.zeros(q.shape[:2])


def _decode(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    tile_scheduler_metadata: SimpleNamespace,
    indices: torch.Tensor,
    softmax_scale: float,
    is_fp8_kvcache: bool,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for the decode of packed latents, whose schedule is made by its first call and refuses other shapes.

    third_party/flashmla/flash_mla_interface.py, FlashMLASchedMeta.
    """
    assert is_fp8_kvcache
    shape = (*q.shape, *indices.shape)
    if tile_scheduler_metadata.shape not in (None, shape):
        raise RuntimeError(f"a schedule of {tile_scheduler_metadata.shape} does not fit {shape}")
    tile_scheduler_metadata.shape = shape
    if q.shape[:2] != indices.shape[:2]:
        raise RuntimeError(f"q {tuple(q.shape)} does not fit indices {tuple(indices.shape)}")
    out = torch.empty(*q.shape[:3], RANK, dtype=q.dtype)
    keys = k_cache.flatten(0, 2)
    launch_attention(q.flatten(0, 1), keys, indices.flatten(0, 1).unsqueeze(1), out.flatten(0, 1), softmax_scale)
    return out, torch.zeros(q.shape[0], q.shape[2], q.shape[1])


def _flash_attn(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    softmax_scale: float,
    max_seqlen_q: int,
    **_: Any,
) -> torch.Tensor:
    """Stand in for FlashAttention 3 with queries of values `q_v`, on pages of one latent: tables are lists.

    k [slots, 1, 1, 64] and v [slots, 1, 1, 512] are the ends of the same rows.
    """
    if len(cu_seqlens_q) != len(q) + 1 or max_seqlen_q != 1:
        raise RuntimeError(f"{len(q)} queries of one token do not fit {len(cu_seqlens_q) - 1} requests")
    width = RANK + k.shape[-1]
    assert k.data_ptr() == v.data_ptr() + RANK * v.itemsize
    rows = v.as_strided((len(v), 1, width), (v.stride(0), width, 1))
    out = torch.empty_like(q_v)
    launch_attention(torch.cat((q_v, q), -1), rows, block_table.unsqueeze(1), out, softmax_scale, None, seqused_k)
    return out


_STAND_INS: Final = {
    "flash_mla_sparse_fwd": _prefill,
    "flash_mla_with_kvcache": _decode,
    "get_mla_metadata": lambda: (SimpleNamespace(shape=None), None),
    "flash_attn_varlen_func": _flash_attn,
}
"""The stand-ins by the names that the backends' modules import."""
