"""Context attention over packed or paged keys: trtllm_fmha_v2_prefill, with all three of Q, K and V in one argument."""

from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.kernels.entry_points.attention import Attention, Stated
from attnfuzz.kernels.entry_points.attention_entry_point import AttentionEntryPoint
from attnfuzz.kernels.entry_points.entry_point import Arguments, Parameter, Role
from attnfuzz.kernels.entry_points.forms import (
    CONTEXT,
    CONTEXT_STATED,
    Form,
    WrongForm,
    batch_size_of,
    described,
    parameters_of,
    sinks_forms,
    tensor_of,
    window_of,
)
from attnfuzz.kernels.entry_points.pool import Pool, pool_of_one
from attnfuzz.kernels.entry_points.spans import cumulative_rows, packed_spans, paged_spans

_QUERY = Form(Role.QUERY, (("tokens", "q heads", "qk dim"),))
_LAYOUTS = {
    "PACKED_QKV": {"qkv": Form(Role.QUERY, (("tokens", "Q, K and V", "q heads", "qk dim"),))},
    "CONTIGUOUS_Q_KV": {
        "qkv[0]": _QUERY,
        "qkv[1]": Form(Role.KEY, (("kv tokens", "K and V", "kv heads", "qk dim"),)),
    },
    "SEPARATE_Q_K_V": {
        "qkv[0]": _QUERY,
        "qkv[1]": Form(Role.KEY, (("kv tokens", "kv heads", "qk dim"),)),
        "qkv[2]": Form(Role.VALUE, (("kv tokens", "kv heads", "vo dim"),)),
    },
    "Q_PAGED_KV_HND": {
        "qkv[0]": _QUERY,
        "qkv[1]": Form(Role.CACHE, (("pages", "K and V", "kv heads", "slots", "qk dim"),)),
    },
    "Q_PAGED_KV_NHD": {
        "qkv[0]": _QUERY,
        "qkv[1]": Form(Role.CACHE, (("pages", "K and V", "slots", "kv heads", "qk dim"),)),
    },
}
_METADATA = {name: form for name, form in CONTEXT.items() if name not in ("query", "lse")}
_HALVES = ("qkv[1][0]", "qkv[1][1]")
_TENSORS = ("qkv", "workspace_buffer", "seq_lens", "cum_seq_lens_q", "cum_seq_lens_kv")


@dataclass(frozen=True)
class FmhaV2(AttentionEntryPoint):
    """The batch is what `batch_size` says; `input_layout` says what `qkv` is.

    A paged cache may be a pair, of halves of one allocation: page ids of K and V are apart then, and count from K's
    first page on.
    """

    name: str = "trtllm_fmha_v2_prefill"
    module: str | None = "flashinfer.prefill"

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """The tensors of a call. Raises ValueError for one that it can't have."""
        layout = arguments.get("input_layout")
        if layout is None:
            raise WrongForm("input_layout", "input_layout is missing")
        if not isinstance(layout, str) or layout not in _LAYOUTS:
            raise WrongForm("input_layout", f"input_layout is {layout!r}, where one of {', '.join(_LAYOUTS)} is due")
        required = (*_TENSORS, *CONTEXT_STATED, *(["block_tables"] if "PAGED" in layout else []))
        forms = {**_keys_and_values(arguments, layout), **_METADATA, **sinks_forms(arguments)}
        return parameters_of(arguments, forms, required, (*CONTEXT_STATED, "window_left"))

    def _attention(self, arguments: Arguments) -> Attention:
        parameters = self.parameters(arguments)
        batch, pool = batch_size_of(arguments), _pool(arguments)
        rows, lengths = cumulative_rows(arguments["cum_seq_lens_q"], batch), arguments["seq_lens"]
        if pool is None:
            spans = packed_spans(rows, lengths, arguments["cum_seq_lens_kv"])
        else:
            spans = paged_spans(rows, lengths, arguments["block_tables"], pool.page_size)
        qkv = arguments["qkv"]
        return Attention(
            arguments=arguments,
            parameters=parameters,
            batch=batch,
            batch_from=("batch_size",),
            batch_text=f"batch_size is {batch}",
            spans=spans,
            max_kv=Stated("max_kv_len", arguments["max_kv_len"]),
            head_dim_vo=_last(qkv).shape[-1],
            query="qkv" if isinstance(qkv, torch.Tensor) else "qkv[0]",
            max_q=Stated("max_q_len", arguments["max_q_len"]),
            table=None if pool is None else "block_tables",
            checked_table=True,
            cum_q="cum_seq_lens_q",
            cum_kv="cum_seq_lens_kv",
            pool=pool,
            halves=_HALVES if _is_pair(arguments) else None,
            # Its docstring: effective in this mode only.
            window_left=window_of(arguments) if arguments.get("mask_mode") == "sliding_window" else -1,
        )


def _pool(arguments: Arguments) -> Pool | None:
    layout = arguments["input_layout"]
    if "PAGED" not in layout:
        return None
    name = _HALVES[0] if _is_pair(arguments) else "qkv[1]"
    return pool_of_one(name, tensor_of(arguments, name), layout[-3:])


def _keys_and_values(arguments: Arguments, layout: str) -> dict[str, Form]:
    """The forms of `qkv` and of the table of its pages. Raises WrongForm."""
    forms = _LAYOUTS[layout]
    if "PAGED" not in layout or not _is_pair(arguments):
        return {**forms, "block_tables": Form(Role.PAGE_TABLE, (("requests", "columns"),))}
    table = arguments.get("block_tables")
    if isinstance(table, torch.Tensor) and (table.ndim != 3 or table.shape[1] != 2):
        raise WrongForm("block_tables", f"block_tables is {described(table)}, where [requests, 2, columns] is due")
    ((pages, _, *rest),) = forms["qkv[1]"].alternatives
    half = Form(Role.CACHE, ((pages, *rest),))
    return {
        "qkv[0]": _QUERY,
        **dict.fromkeys(_HALVES, half),
        "block_tables": Form(Role.PAGE_TABLE, (("requests", "K and V", "columns"),)),
    }


def _is_pair(arguments: Arguments) -> bool:
    qkv = arguments.get("qkv")
    return isinstance(qkv, list | tuple) and len(qkv) == 2 and isinstance(qkv[1], list | tuple)


def _last(qkv: Any) -> torch.Tensor:
    """Where values are."""
    return qkv if isinstance(qkv, torch.Tensor) else _last(qkv[-1])
