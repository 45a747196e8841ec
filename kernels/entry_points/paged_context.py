"""Context attention against a paged KV cache: trtllm_batch_context_with_kv_cache."""

from dataclasses import dataclass

from attnfuzz.kernels.entry_points.attention import Attention, Stated
from attnfuzz.kernels.entry_points.attention_entry_point import AttentionEntryPoint
from attnfuzz.kernels.entry_points.entry_point import Arguments, Parameter, Role
from attnfuzz.kernels.entry_points.forms import (
    CONTEXT,
    CONTEXT_STATED,
    Form,
    batch_size_of,
    parameters_of,
    sinks_forms,
    window_of,
)
from attnfuzz.kernels.entry_points.pool import pool_forms, pool_of
from attnfuzz.kernels.entry_points.spans import cumulative_rows, paged_spans
from attnfuzz.kernels.native.ops import NATIVE

_FORMS = {
    **CONTEXT,
    "block_tables": Form(Role.PAGE_TABLE, (("requests", "columns"), ("requests", "K and V", "columns"))),
}
_TENSORS = ("query", "kv_cache", "workspace_buffer", "block_tables", "seq_lens", "cum_seq_lens_q", "cum_seq_lens_kv")


@dataclass(frozen=True)
class PagedContext(AttentionEntryPoint):
    """The batch is what `batch_size` says; request b has the rows between entries b and b + 1 of `cum_seq_lens_q`."""

    name: str = "trtllm_batch_context_with_kv_cache"
    module: str | None = "flashinfer.prefill"

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """The tensors of a call. Raises ValueError for one that it can't have."""
        forms = {**_FORMS, **sinks_forms(arguments)}
        if arguments.get("kv_cache") is not None:
            forms = {**forms, **pool_forms(arguments, arguments.get("kv_layout", "HND"))}
        return parameters_of(arguments, forms, (*_TENSORS, *CONTEXT_STATED), (*CONTEXT_STATED, "window_left"))

    def _attention(self, arguments: Arguments) -> Attention:
        parameters = self.parameters(arguments)
        pool = pool_of(arguments, arguments.get("kv_layout", "HND"))
        batch = batch_size_of(arguments)
        rows = cumulative_rows(arguments["cum_seq_lens_q"], batch)
        return Attention(
            arguments=arguments,
            parameters=parameters,
            batch=batch,
            batch_from=("batch_size",),
            batch_text=f"batch_size is {batch}",
            spans=paged_spans(rows, arguments["seq_lens"], arguments["block_tables"], pool.page_size),
            max_kv=Stated("max_kv_len", arguments["max_kv_len"]),
            max_q=Stated("max_q_len", arguments["max_q_len"]),
            head_dim_vo=pool.head_dim_vo,
            table="block_tables",
            cum_q="cum_seq_lens_q",
            cum_kv="cum_seq_lens_kv",
            pool=pool,
            window_left=window_of(arguments),
            workspace=lambda: NATIVE.prefill_workspace,
        )
