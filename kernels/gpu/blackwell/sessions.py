"""Serving engines' attention layers on Blackwell: the same calls as everywhere, with a buffer of counters beside."""

from typing import Any

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.gpu.processors import processors
from attnfuzz.kernels.ops_table import OpsTable, WorkspaceBytes
from attnfuzz.kernels.plan import BatchMetadata
from attnfuzz.kernels.results import Results
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import DecodePlan, MlaSession
from attnfuzz.kernels.workspace import SharedWorkspace
from attnfuzz.reference.case import Case, Step

_BACKEND = "trtllm-gen"
_COUNTER_BYTES = 4
_COUNTERS_MULTIPLE = 8


class Counters:
    """The counters by which thread blocks that share a sequence tell who is last.

    Zero at allocation; each launch leaves them so (FlashInfer, docstring of trtllm_batch_decode_with_kv_cache:
    multi_ctas_kv_counter_buffer). Their number is FlashInfer's: utils.get_trtllm_gen_multi_ctas_kv_counter_bytes.
    """

    def __init__(self, case: Case, bench: Bench) -> None:
        self._q_heads, self._processors = case.geometry.q_heads, processors(bench.device)
        self._buffer = SharedWorkspace(case, bench, "multi_ctas_kv_counter_buffer")

    def take(self, batch: int) -> dict[str, torch.Tensor]:
        """The argument with counters for a batch, of exactly the bytes that it needs."""
        counters = max(batch * self._q_heads, self._processors)
        counters = -(-counters // _COUNTERS_MULTIPLE) * _COUNTERS_MULTIPLE
        need = WorkspaceBytes(semaphores=counters * _COUNTER_BYTES, scratch=0)
        return {"multi_ctas_kv_counter_buffer": self._buffer.take(need)}


class BlackwellMhaSession(MhaSession):
    """Multi-head attention."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(ops, case, bench)
        self._counters = Counters(case, bench)

    def _decode_arguments(self, step: Step, plan: BatchMetadata, told: dict[str, Any]) -> dict[str, Any]:
        arguments = super()._decode_arguments(step, plan, told)
        return {"backend": _BACKEND, **self._counters.take(step.padded_batch), **arguments}

    def _context_arguments(self, step: Step, plan: BatchMetadata, told: dict[str, Any]) -> dict[str, Any]:
        arguments = super()._context_arguments(step, plan, told)
        return {**self._counters.take(arguments["batch_size"]), **arguments}


class BlackwellMlaSession(MlaSession):
    """Multi-head latent attention."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(ops, case, bench)
        self._counters = Counters(case, bench)

    def _decode_arguments(self, plan: DecodePlan, query: torch.Tensor, results: Results) -> dict[str, Any]:
        arguments = super()._decode_arguments(plan, query, results)
        return {"backend": _BACKEND, **self._counters.take(plan.seq_lens.shape[0]), **arguments}
