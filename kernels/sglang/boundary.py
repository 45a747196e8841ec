"""What a release hands to a kernel, held against what the kernel's function asks for, before it is launched.

The rules are those of `attnfuzz.kernels.entry_points`: metadata has a row for each request of the batch that the kernel
derives, page ids lie in the pool that the call uses, and so on. They hold for padded rows as well, which a kernel can't
tell from others.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from attnfuzz.kernels.entry_points import Breach
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS

_LAYOUT: Final = ("max_seq_len_q",)
"""Fields of metadata that say how queries are padded to requests of one length, and from which KV lengths follow."""


def breaches(function: str, arguments: Mapping[str, Any]) -> tuple[Breach, ...]:
    """The preconditions that a call breaks, those that explain most first; none of a function that is not known."""
    entry = ENTRY_POINTS.get(function)
    if entry is None:
        return ()
    arguments, apart = _with_one_cache(arguments)
    return (*apart, *entry.breaches(arguments))


def _with_one_cache(arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[Breach, ...]]:
    """A call of fmha_v2 on halves of one allocation as one on a paired cache, and what is wrong with its pages of V.

    It has a table for each, of offsets from the first key on (FlashInfer 0.7.2: prefill.py,
    _check_paged_kv_non_interleaved).
    """
    qkv = arguments.get("qkv")
    if not isinstance(qkv, tuple) or not isinstance(qkv[-1], tuple):
        return arguments, ()
    query, (key, value) = qkv
    apart = value.storage_offset() - key.storage_offset()
    both = key.as_strided((key.shape[0], 2, *key.shape[1:]), (key.stride(0), apart, *key.stride()[1:]))
    keys, values = arguments["block_tables"].unbind(dim=1)
    pages = apart // key.stride(0)
    told = {**arguments, "qkv": (query, both), "block_tables": keys}
    if torch.equal(values, keys + pages):
        return told, ()
    text = f"block_tables has pages of V that are not {pages} behind those of K, where V begins"
    return told, (Breach(("block_tables",), text, "V's offsets account for where it is stored"),)


def frozen_layout(metadata: Any) -> dict[str, int]:
    """How a graph that is captured now lays its queries out: numbers that no replay changes."""
    layout = {name: getattr(metadata, name, None) for name in _LAYOUT}
    return {name: value for name, value in layout.items() if isinstance(value, int)}


def layout_breaches(frozen: Mapping[str, int], metadata: Any) -> Iterator[Breach]:
    """What the planner of a replay takes the layout to be, where the graph has another.

    `frozen` is that of the capture, and `metadata` what the planner made for the replay: lengths in it follow from its
    layout, and the graph's queries from the frozen one.
    """
    for name, value in frozen_layout(metadata).items():
        if name in frozen and value != frozen[name]:
            text = (
                f"{name} is {value} in the plan of the replay and {frozen[name]} in the graph, which pads queries as "
                "it was captured: KV lengths that were planned for another padding are not those of its queries"
            )
            yield Breach((name,), text, "a captured graph keeps the Python numbers of its capture")
