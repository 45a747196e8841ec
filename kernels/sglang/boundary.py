"""What a release hands to a kernel, held against what the kernel's function asks for, before it is launched.

The rules are those of `attnfuzz.kernels.entry_points`: metadata has a row for each request of the batch that the kernel
derives, page ids lie in the pool that the call uses, and so on. They hold for padded rows as well, which a kernel can't
tell from others.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from attnfuzz.kernels.entry_points import Breach
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS

_LAYOUT: Final = ("max_seq_len_q",)
"""Fields of metadata that say how queries are padded to requests of one length, and from which KV lengths follow."""


def breaches(function: str, arguments: Mapping[str, Any]) -> tuple[Breach, ...]:
    """The preconditions that a call breaks, those that explain most first; none of a function that is not known."""
    entry = ENTRY_POINTS.get(function)
    return () if entry is None else entry.breaches(arguments)


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
