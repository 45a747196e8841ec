"""The meaning of the arguments of FlashAttention's functions, and of engines' kernels between calls of attention."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from attnfuzz.kernels.entry_points.attention import Attention, Stated
from attnfuzz.kernels.entry_points.attention_entry_point import AttentionEntryPoint
from attnfuzz.kernels.meaning.call_pool import Pool
from attnfuzz.kernels.meaning.entry_point import Arguments, Breach, EntryPoint, Parameter, Role
from attnfuzz.kernels.meaning.forms import Form, WrongForm, parameters_of, window_of
from attnfuzz.kernels.meaning.spans import cumulative_rows, integers, packed_spans, paged_spans
from attnfuzz.kernels.releases.flash_attention import scheduled

_SOURCE: Final = (
    "FlashAttention, hopper/flash_attn_interface.py and flash_api.cpp (mha_fwd): the kernel reads {names} by pointer"
)

_UNSTATED: Final = 1 << 62

_ROWS: Final[Mapping[str, Form]] = {
    "q": Form(Role.QUERY, (("tokens", "q heads", "qk dim"),)),
    "qv": Form(Role.QUERY, (("tokens", "q heads", "vo dim"),)),
    "out": Form(Role.OUT, (("tokens", "q heads", "vo dim"),)),
    "cu_seqlens_q": Form(Role.CUM_Q, (("requests + 1",),)),
}


@dataclass(frozen=True)
class FlashAttention(AttentionEntryPoint):
    """A batch of as many requests as `cu_seqlens_q` has; with a page table, keys are in pages, and otherwise packed.

    `cache` names keys and values in pages, `lengths` their numbers, and `sinks` those of the layer.
    """

    name: str
    cache: tuple[str, str]
    lengths: str
    sinks: str
    module: str | None = None

    def parameters(self, arguments: Arguments) -> tuple[Parameter, ...]:
        """Return the tensors of a call. Raises ValueError for impossible ones."""
        forms = {**_ROWS, self.sinks: Form(Role.SINKS, (("q heads",),))}
        if arguments.get("page_table") is not None:
            # The parts of latents are those of one head.
            head = "" if arguments.get("qv") is not None else "kv heads"
            for name, dim in zip(self.cache, ("qk dim", "vo dim"), strict=True):
                forms[name] = Form(Role.CACHE, (("pages", "slots", head, dim),))
            forms["page_table"] = Form(Role.PAGE_TABLE, (("requests", "columns"),))
            forms[self.lengths] = Form(Role.KV_LENGTHS, (("requests",),))
            needed: tuple[str, ...] = ("page_table", self.lengths, *self.cache)
        else:
            forms["k"] = Form(Role.KEY, (("kv tokens", "kv heads", "qk dim"),))
            forms["v"] = Form(Role.VALUE, (("kv tokens", "kv heads", "vo dim"),))
            forms["cu_seqlens_k"] = Form(Role.CUM_KV, (("requests + 1",),))
            needed = ("k", "v", "cu_seqlens_k")
        return parameters_of(arguments, forms, ("q", "out", "cu_seqlens_q", *needed), ("max_seqlen_q", "max_seqlen_k"))

    def breaches(self, arguments: Arguments) -> tuple[Breach, ...]:
        """Return the preconditions that a call breaks."""
        found = (*super().breaches(arguments), *_not_scheduled(arguments))
        return tuple(
            replace(each, source=_SOURCE.format(names=", ".join(each.arguments) or "its arguments")) for each in found
        )

    def _attention(self, arguments: Arguments) -> Attention:
        parameters, batch = self.parameters(arguments), len(arguments["cu_seqlens_q"]) - 1
        rows = cumulative_rows(arguments["cu_seqlens_q"], batch)
        stated = {name: arguments.get(name) for name in ("max_seqlen_q", "max_seqlen_k")}
        most = {name: Stated(name, _UNSTATED if value is None else value) for name, value in stated.items()}
        shared: dict[str, Any] = {
            "arguments": arguments,
            "parameters": parameters,
            "batch": batch,
            "batch_from": ("cu_seqlens_q",),
            "batch_text": f"cu_seqlens_q has {batch} requests",
            "max_q": most["max_seqlen_q"],
            "max_kv": most["max_seqlen_k"],
            "query": "q",
            "cum_q": "cu_seqlens_q",
            "window_left": window_of(arguments),
        }
        if arguments.get("page_table") is None:
            starts = arguments["cu_seqlens_k"]
            spans = packed_spans(rows, torch.tensor(integers(starts)).diff(), starts)
            dim = arguments["v"].shape[-1]
            return Attention(**shared, spans=spans, head_dim_vo=dim, lengths="cu_seqlens_k", first_keys="cu_seqlens_k")
        key, value = (arguments[name] for name in self.cache)
        pages, slots, heads, dim = value.shape
        if not slots:
            raise WrongForm(self.cache[1], f"{self.cache[1]} has pages without slots")
        return Attention(
            **shared,
            spans=paged_spans(rows, arguments[self.lengths], arguments["page_table"], slots),
            head_dim_vo=dim,
            table="page_table",
            pool=Pool(self.cache[0], min(pages, key.shape[0]), slots, heads, dim),
            lengths=self.lengths,
        )


def _not_scheduled(arguments: Arguments) -> tuple[Breach, ...]:
    """Return the first request of which a schedule has other rows than the batch."""
    schedule, starts = arguments.get("scheduler_metadata"), arguments.get("cu_seqlens_q")
    if not isinstance(schedule, torch.Tensor) or not isinstance(starts, torch.Tensor):
        return ()
    try:
        planned, _ = scheduled(schedule, len(starts) - 1)
    except RuntimeError as error:
        return (Breach(("scheduler_metadata", "cu_seqlens_q"), str(error), ""),)
    for request, (rows, due) in enumerate(zip(planned.tolist(), starts.diff().tolist(), strict=True)):
        if rows != due:
            text = f"scheduler_metadata has {rows} rows of request {request}, and cu_seqlens_q has {due}"
            return (Breach(("scheduler_metadata", "cu_seqlens_q"), text, "", request),)
    return ()


_KNOWN: Final[tuple[EntryPoint, ...]] = (
    FlashAttention("flash_attn_varlen_func", ("k", "v"), "seqused_k", "s_aux"),
    FlashAttention("flash_attn_with_kvcache", ("k_cache", "v_cache"), "cache_seqlens", "sinks"),
)

ENTRY_POINTS: Final[Mapping[str, EntryPoint]] = {entry.name: entry for entry in _KNOWN}
"""FlashAttention's functions, as engines call them."""
