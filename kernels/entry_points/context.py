"""Context attention: packed queries of a batch whose size the caller states, over pages or over packed keys.

These are trtllm_batch_context_with_kv_cache, trtllm_ragged_attention_deepseek, and trtllm_fmha_v2_prefill, which takes
Q, K and V in one argument.
"""

from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.kernels.entry_points.attention import Attention, Stated
from attnfuzz.kernels.entry_points.attention_entry_point import AttentionEntryPoint
from attnfuzz.kernels.meaning.call_pool import Pool, pool_forms, pool_of, pool_of_one
from attnfuzz.kernels.meaning.entry_point import Arguments, Parameter, RequestSpan, Role
from attnfuzz.kernels.meaning.forms import (
    TOKEN_LSE,
    WORKSPACE,
    Form,
    WrongForm,
    described,
    parameters_of,
    sinks_forms,
    tensor_of,
    window_of,
)
from attnfuzz.kernels.meaning.spans import Rows, cumulative_rows, packed_spans, paged_spans
from attnfuzz.kernels.native.ops import NATIVE

_MOST_REQUESTS = 1 << 20
"""Limits the spans of a call: a nonsensical batch size must not exhaust memory."""
_QUERY = Form(Role.QUERY, (("tokens", "q heads", "qk dim"),))
_SHARED = {
    "query": _QUERY,
    "workspace_buffer": WORKSPACE,
    "seq_lens": Form(Role.KV_LENGTHS, (("requests",),)),
    "cum_seq_lens_q": Form(Role.CUM_Q, (("requests + 1",),)),
    "cum_seq_lens_kv": Form(Role.CUM_KV, (("requests + 1",),)),
    "out": Form(Role.OUT, (("tokens", "q heads", "vo dim"),)),
    "lse": TOKEN_LSE,
}
"""The common parameters, without keys and values."""
_STATED = ("batch_size", "max_q_len", "max_kv_len")
_REQUIRED = ("workspace_buffer", "seq_lens", "cum_seq_lens_q", "cum_seq_lens_kv", *_STATED)
_NUMBERS = (*_STATED, "window_left")


def _rows(arguments: Arguments) -> list[Rows | None]:
    """Return the query rows of the stated `batch_size` requests. Raises WrongForm for an impossible size."""
    batch: int = arguments["batch_size"]
    if not 0 <= batch <= _MOST_REQUESTS:
        raise WrongForm("batch_size", f"batch_size is {batch}")
    return cumulative_rows(arguments["cum_seq_lens_q"], batch)


def _stated(arguments: Arguments, parameters: tuple[Parameter, ...], **more: Any) -> Attention:
    """State the facts about a call with a stated batch size; `more` are those of one entry point."""
    batch = arguments["batch_size"]
    return Attention(
        arguments=arguments,
        parameters=parameters,
        batch=batch,
        batch_from=("batch_size",),
        batch_text=f"batch_size is {batch}",
        max_kv=Stated("max_kv_len", arguments["max_kv_len"]),
        max_q=Stated("max_q_len", arguments["max_q_len"]),
        cum_q="cum_seq_lens_q",
        cum_kv="cum_seq_lens_kv",
        **more,
    )


_BITS, _STARTS = "packed_custom_mask", "mask_indptr"
_MASKS = {_BITS: Form(Role.MASK, (("bytes",),)), _STARTS: Form(Role.MASK_STARTS, (("requests + 1",),))}


_INTERVALS = ("variable_window_token_starts", "variable_window_token_ends")
_OF_TOKENS = {name: Form(Role.INTERVALS, (("tokens",),)) for name in _INTERVALS}


@dataclass(frozen=True)
class PagedContext(AttentionEntryPoint):
    """A batch of `batch_size` requests; request b has the rows between entries b and b + 1 of `cum_seq_lens_q`.

    A `masked` one takes the packed masks of FlashInfer's prefill wrappers.
    """

    name: str = "trtllm_batch_context_with_kv_cache"
    module: str | None = "flashinfer.prefill"
    masked: bool = False

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """Return the tensors of a call. Raises ValueError for impossible ones."""
        tables = (("requests", "columns"), ("requests", "K and V", "columns"))
        forms = {**_SHARED, **_OF_TOKENS, "block_tables": Form(Role.PAGE_TABLE, tables), **sinks_forms(arguments)}
        if arguments.get("kv_cache") is not None:
            forms = {**forms, **pool_forms(arguments, arguments.get("kv_layout", "HND"))}
        masks = _MASKS if self.masked else {}
        required = ("query", "kv_cache", "block_tables", *_REQUIRED, *masks)
        return parameters_of(arguments, {**forms, **masks}, required, (*_NUMBERS, "window_right"))

    def mask(self, arguments: Arguments, span: RequestSpan) -> torch.Tensor | None:
        """Return the intervals of keys, or the end of a window that is not causal."""
        key = torch.arange(span.kv_len)
        if _has_intervals(arguments):
            first, last = (arguments[name][span.first_row :][: span.q_len].cpu().unsqueeze(1) for name in _INTERVALS)
            return key.ge(first) & key.le(last)
        if arguments.get("causal", True) or window_of(arguments) < 0:
            return None
        right: int = arguments.get("window_right", -1)
        own = torch.arange(span.kv_len - span.q_len, span.kv_len).unsqueeze(1)
        return key.le(own + (right if right >= 0 else span.q_len))

    def _attention(self, arguments: Arguments) -> Attention:
        parameters = self.parameters(arguments)
        pool = pool_of(arguments, arguments.get("kv_layout", "HND"))
        rows = _rows(arguments)
        return _stated(
            arguments,
            parameters,
            spans=paged_spans(rows, arguments["seq_lens"], arguments["block_tables"], pool.page_size),
            head_dim_vo=pool.head_dim_vo,
            table="block_tables",
            in_pages=True,
            pool=pool,
            masks=(_BITS, _STARTS) if self.masked else None,
            intervals=_INTERVALS if _has_intervals(arguments) else None,
            window_left=window_of(arguments),
            workspace=lambda: NATIVE.prefill_workspace,
        )


def _has_intervals(arguments: Arguments) -> bool:
    return all(arguments.get(name) is not None for name in _INTERVALS)


_RAGGED_FORMS = {
    **_SHARED,
    "key": Form(Role.KEY, (("kv tokens", "kv heads", "qk dim"),)),
    "value": Form(Role.VALUE, (("kv tokens", "kv heads", "vo dim"),)),
    "q_seq_lens_cpu": Form(Role.OTHER, (("requests",),)),
    "kv_seq_lens_cpu": Form(Role.OTHER, (("requests",),)),
}


@dataclass(frozen=True)
class Ragged(AttentionEntryPoint):
    """A batch of `batch_size` requests; request b has seq_lens[b] keys from row cum_seq_lens_kv[b] on."""

    name: str = "trtllm_ragged_attention_deepseek"
    module: str | None = "flashinfer.prefill"

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """Return the tensors of a call. Raises ValueError for impossible ones."""
        forms = {**_RAGGED_FORMS, **sinks_forms(arguments, "attention_sinks")}
        return parameters_of(arguments, forms, ("query", "key", "value", *_REQUIRED), _NUMBERS)

    def leaves_empty_rows(self, arguments: Arguments) -> bool:
        """Return whether a call lacks the lengths on the CPU.

        FlashInfer's docstring of `q_seq_lens_cpu`: "The default assumes all rows are active".
        """
        return arguments.get("q_seq_lens_cpu") is None

    def _attention(self, arguments: Arguments) -> Attention:
        parameters = self.parameters(arguments)
        rows = _rows(arguments)
        return _stated(
            arguments,
            parameters,
            spans=packed_spans(rows, arguments["seq_lens"], arguments["cum_seq_lens_kv"]),
            head_dim_vo=arguments["value"].shape[-1],
            window_left=window_of(arguments),
            workspace=lambda: NATIVE.prefill_workspace,
        )


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
_METADATA = {name: form for name, form in _SHARED.items() if name not in ("query", "lse")}
_HALVES = ("qkv[1][0]", "qkv[1][1]")


@dataclass(frozen=True)
class FmhaV2(AttentionEntryPoint):
    """A batch of `batch_size` requests; `input_layout` determines the form of `qkv`.

    A paged cache may be a pair of halves of one allocation. K and V then have separate page ids, both counted from K's
    first page.
    """

    name: str = "trtllm_fmha_v2_prefill"
    module: str | None = "flashinfer.prefill"
    masked: bool = True

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """Return the tensors of a call. Raises ValueError for impossible ones."""
        layout = arguments.get("input_layout")
        if layout is None:
            raise WrongForm("input_layout", "input_layout is missing")
        if not isinstance(layout, str) or layout not in _LAYOUTS:
            raise WrongForm("input_layout", f"input_layout is {layout!r}, but must be one of {', '.join(_LAYOUTS)}")
        required = ("qkv", *_REQUIRED, *(["block_tables"] if "PAGED" in layout else []))
        forms = {**_keys_and_values(arguments, layout), **_METADATA, **sinks_forms(arguments)}
        return parameters_of(arguments, forms, required, _NUMBERS)

    def _attention(self, arguments: Arguments) -> Attention:
        parameters = self.parameters(arguments)
        pool, rows, lengths = _pool(arguments), _rows(arguments), arguments["seq_lens"]
        if pool is None:
            spans = packed_spans(rows, lengths, arguments["cum_seq_lens_kv"])
        else:
            spans = paged_spans(rows, lengths, arguments["block_tables"], pool.page_size)
        qkv = arguments["qkv"]
        return _stated(
            arguments,
            parameters,
            spans=spans,
            head_dim_vo=_last(qkv).shape[-1],
            query="qkv" if isinstance(qkv, torch.Tensor) else "qkv[0]",
            table=None if pool is None else "block_tables",
            checked_table=True,
            pool=pool,
            halves=_HALVES if _is_pair(arguments) else None,
            # FlashInfer's docstring: effective in this mode only.
            window_left=window_of(arguments) if arguments.get("mask_mode") == "sliding_window" else -1,
        )


def _pool(arguments: Arguments) -> Pool | None:
    layout = arguments["input_layout"]
    if "PAGED" not in layout:
        return None
    name = _HALVES[0] if _is_pair(arguments) else "qkv[1]"
    return pool_of_one(name, tensor_of(arguments, name), layout[-3:])


def _keys_and_values(arguments: Arguments, layout: str) -> dict[str, Form]:
    """Return the forms of `qkv` and of the table of its pages. Raises WrongForm."""
    forms = _LAYOUTS[layout]
    if "PAGED" not in layout or not _is_pair(arguments):
        return {**forms, "block_tables": Form(Role.PAGE_TABLE, (("requests", "columns"),))}
    table = arguments.get("block_tables")
    if isinstance(table, torch.Tensor) and (table.ndim != 3 or table.shape[1] != 2):
        raise WrongForm("block_tables", f"block_tables is {described(table)}, but must be [requests, 2, columns]")
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
    """Return the tensor of the values, or the one that contains them."""
    return qkv if isinstance(qkv, torch.Tensor) else _last(qkv[-1])
