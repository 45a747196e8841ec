"""A server's indexer: the release's own metadata builder and the layer that runs its kernels.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.answers import ServerMock
from attnfuzz.kernels.sparse.index_cache import new_keys
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.kernels.vllm.sparse.batch import PaddedBatch
from attnfuzz.kernels.vllm.sparse.planner import LAYER, Activations, Planner, rows_in_batch
from attnfuzz.reference.sparse.case import SparseCase

_LOGITS: Final = (64, 2_000, 1 << 27)
"""The scores of a chunk of a prefill at most: the default of a server, 2^27 in 512 MiB, and few."""


class _Bytes(int):
    """A limit in bytes in place of one in mebibytes, of which cases of this size would have no use."""

    def __mul__(self, _: int) -> "_Bytes":
        return self


class Indexer(Planner):
    """The indexer, whose cache is `cache` uint8 [pages, page bytes]."""

    def __init__(self, loaded: Any, case: SparseCase, bench: Bench, drafts: int, cache: torch.Tensor) -> None:
        super().__init__(loaded, case, bench, drafts)
        # Pages of 64 keys with 4 bytes of scale each (model_executor/models/deepseek_v2.py, DeepseekV32IndexerCache).
        self._cache = cache.unflatten(1, (case.geometry.page_size, -1))
        # A server chooses it for its longest requests (indexer.py, get_max_prefill_buffer_size).
        self._workspace = self._longest * (1 + case.variant % 3)
        self._builder.max_prefill_buffer_size = self._workspace

    def _spec(self) -> dict[str, Any]:
        return {"head_size": self._case.geometry.index_dim + 4, "dtype": torch.uint8}

    def _activations(self, inputs: OpInputs, batch: PaddedBatch) -> Activations:
        """Return the layer's inputs for a batch, in its order. Rows of padding hold other numbers."""
        rows = max(inputs.step.rows, batch.padded_tokens)
        order = rows_in_batch(inputs, batch.order)
        keys = inputs.index_keys[new_keys(inputs)]
        values = {"q": inputs.index_queries, "weights": inputs.index_weights, "k": keys}
        made = {}
        for name, value in values.items():
            whole = torch.zeros(rows, *value.shape[1:], dtype=value.dtype)
            whole.view(_bits(value)).fill_(1)
            whole.view(_bits(value))[: len(order)] = value.view(_bits(value))[order]
            made[name] = whole
        return made

    def _forward(self, metadata: Any, given: Activations, *, full: bool) -> None:
        """Run the layer's own function, whose parameters differ between releases."""
        module, geometry = self._loaded.module(self._loaded.kind.layer), self._case.geometry
        modes = self._loaded.module("vllm.config.compilation").CUDAGraphMode
        arguments = {
            "hidden_states": given["weights"],
            "k_cache_prefix": LAYER,
            "kv_cache": self._cache,
            "q_quant": given["q"],
            "q_fp8": given["q"],
            "q_scale": None,
            "k": given["k"],
            "weights": given["weights"],
            "quant_block_size": geometry.index_dim,
            "scale_fmt": "ue8m0",
            "topk_tokens": geometry.top_k,
            "head_dim": geometry.index_dim,
            "max_model_len": self._longest,
            "total_seq_lens": self._workspace,
            "topk_indices_buffer": self.lists,
            "skip_k_cache_insert": False,
            "use_pcp": False,
            "pcp_shard_decode_requests": False,
            "dense_mha_metadata_layer_name": "",
        }
        own = module.sparse_attn_indexer
        taken = {name: value for name, value in arguments.items() if name in inspect.signature(own).parameters}
        context = SimpleNamespace(
            attn_metadata=None if metadata is None else {LAYER: metadata},
            cudagraph_runtime_mode=modes.FULL if full else modes.NONE,
        )
        with mock.patch.object(module, "get_forward_context", return_value=context):
            own(**taken)

    @contextmanager
    def _running(self) -> Iterator[None]:
        limits = ServerMock(
            "envs",
            VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=_Bytes(4 * _LOGITS[self._case.variant // 3 % len(_LOGITS)]),
            VLLM_DISABLE_PYNCCL=False,
            VLLM_USE_NCCL_SYMM_MEM=False,
            VLLM_BATCH_INVARIANT=False,
        )
        with super()._running(), mock.patch.object(self._loaded.backend, "envs", limits, create=True):
            yield


def _bits(value: torch.Tensor) -> torch.dtype:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[value.itemsize]
