"""A server's sparse attention up to its kernel: the backend's own metadata builder, and slots made of positions.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import torch

from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.kernels.vllm.mla.prefills import MLA
from attnfuzz.kernels.vllm.sparse.batch import PaddedBatch
from attnfuzz.kernels.vllm.sparse.planner import Activations, Planner, rows_in_batch

CONVERT: Final = "triton_convert_req_index_to_global_index"


class SlotLists(Planner):
    """The conversion of positions to slots, as FlashMLASparseImpl runs it on a cache in bfloat16.

    The rows of a plan are those of the batch (v1/attention/backends/mla/flashmla_sparse.py:916).
    """

    @contextmanager
    def _running(self) -> Iterator[None]:
        # Only DeepSeek-V4 has these (model_executor/layers/attention/mla_attention.py:1759).
        ratios = mock.patch.object(self._loaded.module(MLA), "get_compress_ratios", return_value=None, create=True)
        with super()._running(), ratios:
            yield

    def _spec(self) -> dict[str, Any]:
        return {"head_size": 576, "dtype": torch.bfloat16}

    def _activations(self, inputs: OpInputs, batch: PaddedBatch) -> Activations:
        """Return the positions of each row: -1 in rows of padding, as the indexer leaves them."""
        order = rows_in_batch(inputs, batch.order)
        positions = torch.full(
            (max(inputs.step.rows, batch.padded_tokens), self._case.geometry.top_k), -1, dtype=torch.int32
        )
        positions[: len(order)] = positions_of(inputs)[order]
        return {"positions": positions}

    def _forward(self, metadata: Any, given: Activations, *, full: bool) -> None:
        """Convert the positions of a batch; a forward without metadata attends to nothing."""
        del full
        if metadata is None:
            return
        convert = getattr(self._loaded.module(self._loaded.kind.layer), CONVERT)
        positions = given["positions"][: metadata.num_actual_tokens]
        more = {"return_valid_counts": True} if "return_valid_counts" in inspect.signature(convert).parameters else {}
        made = convert(
            metadata.req_id_per_token[: len(positions)],
            metadata.block_table,
            positions,
            BLOCK_SIZE=metadata.block_size,
            NUM_TOPK_TOKENS=positions.shape[1],
            **more,
        )
        slots = made[0] if isinstance(made, tuple) else made
        self.lists[: len(slots)].copy_(slots)


def positions_of(inputs: OpInputs) -> torch.Tensor:
    """Return the positions of the lists of a step's rows int32 [rows, top_k], -1 behind them."""
    count = sum(request.q_len for request in inputs.step.requests)
    positions = torch.full((count, inputs.geometry.top_k), -1, dtype=torch.int32)
    for row, each in enumerate(inputs.rows[:count]):
        own = inputs.positions(row, inputs.geometry.top_k, each.length)
        positions[row, : len(own)] = own
    return positions
