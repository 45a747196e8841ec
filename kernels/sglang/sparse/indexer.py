"""A release's own indexer behind its projections: the write of its keys, its scores, and its top-k.

A file and line below sglang/srt/ is that of SGLang 0.5.23 unless another version is named.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.sglang.sparse.kernels import MULTIPROCESSORS
from attnfuzz.kernels.sparse.index_cache import new_keys
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.reference.sparse import packed
from attnfuzz.reference.sparse.case import KvFormat, SparseCase

LAYER_ID: Final = 0

_BUDGETS: Final = (0, 256 * 4 * 3, 256 * 4)
"""Bytes for the scores of a prefill: a server's, for which these cases are small, and few rows at once."""


@dataclass(frozen=True)
class SparseInputs:
    """The inputs of a layer, in rows.

    `query` [rows, heads, dim] and `latent` [rows, 1, dim] of the attention are bfloat16. Those of the indexer are
    results of its projections: `q` e4m3 [rows, heads, dim], `weights` float32 [rows, heads] and `key` bfloat16
    [rows, dim].
    """

    query: torch.Tensor
    latent: torch.Tensor
    q: torch.Tensor
    weights: torch.Tensor
    key: torch.Tensor

    @classmethod
    def place(cls, bench: Bench, values: dict[str, torch.Tensor]) -> "SparseInputs":
        """Place inputs in guarded memory."""
        return cls(**{name: bench.memory.copy(name, value) for name, value in values.items()})

    def fill(self, other: "SparseInputs") -> None:
        """Copy other inputs into these, which a graph reads."""
        for name in self.__dataclass_fields__:
            mine, new = getattr(self, name), getattr(other, name)
            mine.view(torch.uint8).copy_(new.view(torch.uint8))


def inputs_of(inputs: OpInputs, rows: int) -> dict[str, torch.Tensor]:
    """Return the inputs of a step with padding; rows of padding hold other finite numbers."""
    new = new_keys(inputs)
    latents = latents_of(inputs)
    real = {
        "query": inputs.queries[: len(new)],
        "latent": latents[new],
        "q": inputs.index_queries[: len(new)],
        "weights": inputs.index_weights[: len(new)],
        "key": inputs.index_keys[new],
    }
    made = {}
    for name, value in real.items():
        whole = torch.ones(rows, *value.shape[1:]).to(value.dtype)
        whole.view(torch.uint8)[: len(new)] = value.contiguous().view(torch.uint8)
        made[name] = whole
    return made


def latents_of(inputs: OpInputs) -> torch.Tensor:
    """Return the latents of all keys before they are stored, bfloat16 [keys, 1, dim]."""
    own, _ = inputs.contents([request.kv_len for request in inputs.step.requests])
    if inputs.geometry.format is KvFormat.PACKED:
        return packed.unpack(own).to(torch.bfloat16)[:, None]
    return own


def blank_inputs(case: SparseCase, rows: int) -> dict[str, torch.Tensor]:
    """Return inputs for the capture of a graph."""
    geometry = case.geometry
    return {
        "query": torch.zeros(rows, geometry.query_heads, geometry.dim, dtype=torch.bfloat16),
        "latent": torch.zeros(rows, 1, geometry.dim, dtype=torch.bfloat16),
        "q": torch.zeros(rows, geometry.index_heads, geometry.index_dim).to(torch.float8_e4m3fn),
        "weights": torch.zeros(rows, geometry.index_heads),
        "key": torch.zeros(rows, geometry.index_dim, dtype=torch.bfloat16),
    }


class _OnGpu(torch.Tensor):
    """A tensor whose device has an index, which a prefill asks for (layers/attention/dsa/dsa_indexer.py:1537)."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device with an index."""
        return torch.device("cpu", 0)


def make_indexer(loaded: Any, case: SparseCase) -> Any:
    """Return a release's Indexer without weights: `given` are the results of its projections.

    `lists` are those of its last forward.
    """
    module = loaded.module("sglang.srt.layers.attention.dsa.dsa_indexer")

    class Given(module.Indexer):  # type: ignore[misc, name-defined] # a class of the release
        given: SparseInputs
        extends: bool

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            geometry = case.geometry
            self.n_heads, self.head_dim, self.rope_head_dim = geometry.index_heads, geometry.index_dim, 64
            self.index_topk, self.layer_id = geometry.top_k, LAYER_ID
            self.block_size, self.scale_fmt = 128, "ue8m0"
            self.softmax_scale = geometry.index_dim**-0.5
            self.use_dsa_indexer_fusion = True
            self.weights_proj = SimpleNamespace(set_lora=False)
            self.use_aiter_fused_fp8_writer = self.use_gfx950_fused_indexer = False
            self.dsa_enable_prefill_cp = self.nsa_enable_prefill_cp = self.logits_with_pp_recv = False
            # Without a second stream, whose order is the same here.
            self.alt_stream = None
            self.sm_count = self.half_device_sm_count = MULTIPROCESSORS
            self.num_init_tokens = self.num_local_tokens = 0
            # Since 0.5.15.
            self.paged_mqa_logits_backend = getattr(getattr(module, "DSAPagedMQALogitsBackend", None), "DEEPGEMM", None)

        def _fused_q_prepare_and_store(
            self, x: Any, q_lora: Any, positions: Any, forward_batch: Any, layer_id: int, act_quant: Any, **_: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            """Store the given keys, and return the given queries and weights."""
            self._store_index_k_cache(
                forward_batch=forward_batch, layer_id=layer_id, key=self.given.key, act_quant=act_quant
            )
            return self._queries(), self.given.weights.unsqueeze(-1)

        # Before 0.5.15, projections are apart from writes.

        def _get_q_k_bf16(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
            """Return the given queries and keys."""
            return self._queries(), self.given.key

        def _get_k_bf16(self, *_: Any, **__: Any) -> torch.Tensor:
            """Return the given keys."""
            return self.given.key

        def _get_logits_head_gate(self, *_: Any) -> torch.Tensor:
            """Return the given weights."""
            return self.given.weights.unsqueeze(-1)

        def _should_chunk_mqa_logits(self, num_q: int, num_k: int, *_: Any) -> tuple[bool, int]:
            """Return whether scores take more memory than there is, and how much that is."""
            budget = self._get_mqa_logits_budget_bytes(None)
            return 0 < budget < num_q * num_k * 4, budget

        def _queries(self) -> torch.Tensor:
            """Return the given queries, which prefills ask for the index of their GPU."""
            return self.given.q.as_subclass(_OnGpu) if self.extends else self.given.q

        def _fused_k_weights(self, _: Any) -> tuple[torch.Tensor, None]:
            """Return the given keys."""
            return self.given.key, None

        def _fused_k_prepare_and_store(
            self,
            key_raw: torch.Tensor,
            positions: Any,
            forward_batch: Any,
            layer_id: int,
            act_quant: Any,
            out_cache_loc: torch.Tensor | None = None,
        ) -> None:
            """Store the given keys."""
            del positions
            self._store_index_k_cache(
                forward_batch=forward_batch,
                layer_id=layer_id,
                key=key_raw,
                act_quant=act_quant,
                out_cache_loc=out_cache_loc,
            )

        def _get_mqa_logits_budget_bytes(self, _: object) -> int:
            """Return the bytes that scores may have."""
            return _BUDGETS[case.variant // 3 % len(_BUDGETS)]

        def lists(self, batch: Any, inputs: SparseInputs) -> torch.Tensor:
            """Run a forward, and return its lists."""
            self.given, self.extends = inputs, batch.forward_mode.is_extend_without_speculative()
            made: torch.Tensor = self.forward_cuda(inputs.weights, inputs.weights, batch.positions, batch, LAYER_ID)
            return made

    return Given()
