"""Attention over packed keys and values: trtllm_ragged_attention_deepseek."""

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
from attnfuzz.kernels.entry_points.spans import cumulative_rows, packed_spans
from attnfuzz.kernels.native.ops import NATIVE

_FORMS = {
    **CONTEXT,
    "key": Form(Role.KEY, (("kv tokens", "kv heads", "qk dim"),)),
    "value": Form(Role.VALUE, (("kv tokens", "kv heads", "vo dim"),)),
    "q_seq_lens_cpu": Form(Role.OTHER, (("requests",),)),
    "kv_seq_lens_cpu": Form(Role.OTHER, (("requests",),)),
}
_TENSORS = ("query", "key", "value", "workspace_buffer", "seq_lens", "cum_seq_lens_q", "cum_seq_lens_kv")


def leaves_empty_rows(op: str, arguments: Arguments) -> bool:
    """Whether a call writes no row of a request without keys: a ragged one without mirrors of the lengths on the CPU.

    FlashInfer's docstring of `q_seq_lens_cpu`: "The default assumes all rows are active".
    """
    return op == Ragged.name and arguments.get("q_seq_lens_cpu") is None


@dataclass(frozen=True)
class Ragged(AttentionEntryPoint):
    """The batch is what `batch_size` says; request b has seq_lens[b] keys from row cum_seq_lens_kv[b] on."""

    name: str = "trtllm_ragged_attention_deepseek"
    module: str | None = "flashinfer.prefill"

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """The tensors of a call. Raises ValueError for one that it can't have."""
        forms = {**_FORMS, **sinks_forms(arguments, "attention_sinks")}
        return parameters_of(arguments, forms, (*_TENSORS, *CONTEXT_STATED), (*CONTEXT_STATED, "window_left"))

    def _attention(self, arguments: Arguments) -> Attention:
        parameters = self.parameters(arguments)
        batch = batch_size_of(arguments)
        rows = cumulative_rows(arguments["cum_seq_lens_q"], batch)
        return Attention(
            arguments=arguments,
            parameters=parameters,
            batch=batch,
            batch_from=("batch_size",),
            batch_text=f"batch_size is {batch}",
            spans=packed_spans(rows, arguments["seq_lens"], arguments["cum_seq_lens_kv"]),
            max_kv=Stated("max_kv_len", arguments["max_kv_len"]),
            max_q=Stated("max_q_len", arguments["max_q_len"]),
            head_dim_vo=arguments["value"].shape[-1],
            cum_q="cum_seq_lens_q",
            cum_kv="cum_seq_lens_kv",
            window_left=window_of(arguments),
            workspace=lambda: NATIVE.prefill_workspace,
        )
