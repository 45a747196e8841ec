"""The kernels that a TRT-LLM style backend launches, as one table per implementation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from attnfuzz.kernels.interface.backend import Op


@dataclass(frozen=True)
class WorkspaceBytes:
    """Size of a workspace: first the semaphores, zero at first use (each call leaves them zero), then any scratch."""

    semaphores: int
    scratch: int

    @property
    def total(self) -> int:
        """The total size. It is exact, so one byte less makes a write out of bounds."""
        return self.semaphores + self.scratch


class DecodeWorkspace(Protocol):
    """Computes the workspace of one decode call from the batch of its queries and the stated maximum."""

    def __call__(
        self, *, batch: int, q_len: int, q_heads: int, kv_heads: int, head_dim_vo: int, max_seq_len: int
    ) -> WorkspaceBytes:
        """Return the size. For MLA, `kv_heads` is 1 and `head_dim_vo` the rank."""


@dataclass(frozen=True)
class OpsTable:
    """One implementation of each entry point; every function takes FlashInfer's arguments.

    decode: trtllm_batch_decode_with_kv_cache. context: trtllm_batch_context_with_kv_cache. ragged:
    trtllm_ragged_attention_deepseek. mla_decode: trtllm_batch_decode_with_kv_cache_mla. merge_state_in_place: the
    function of that name in flashinfer.cascade. fixup: fixup_zero_kv_rows, this project's own. `decode_workspace` sizes
    the workspace of decode and MLA decode, `prefill_workspace` that of the others. `prepare` compiles or loads the
    kernels and reports slow steps to its argument. masked_context: the context kernel with the packed masks of
    FlashInfer's wrappers, if there is one.
    """

    decode: Op
    context: Op
    ragged: Op
    mla_decode: Op
    merge_state_in_place: Op
    fixup: Op
    decode_workspace: DecodeWorkspace
    prefill_workspace: WorkspaceBytes
    prepare: Callable[[Callable[[str], None]], object]
    masked_context: Op | None = None

    def ops(self) -> tuple[Op, ...]:
        """Return every kernel of the table."""
        masked = () if self.masked_context is None else (self.masked_context,)
        attention = self.decode, self.context, self.ragged, self.mla_decode
        return *attention, *masked, self.merge_state_in_place, self.fixup
