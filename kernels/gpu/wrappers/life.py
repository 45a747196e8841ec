"""Earlier uses of a wrapper, which must not matter to the plan and the run that follow."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.gpu.wrappers.wrapper import Wrapper
from attnfuzz.kernels.plan import Row
from attnfuzz.reference.arguments import Event

_MOST_MASKED = 1 << 22
"""Elements of a custom mask above which none is planned: FlashInfer packs them, one request after another."""


@dataclass(frozen=True)
class Batch:
    """The lists of a plan in guarded memory, by the names of its arguments, and the same on the host, if it is used."""

    placed: Mapping[str, torch.Tensor]
    on_host: Mapping[str, torch.Tensor] | None = None

    def plan(self, wrapper: Wrapper, layer: Mapping[str, Any]) -> None:
        """Plan it for a layer."""
        wrapper.plan(self.placed, layer, self.on_host)


BatchOf = Callable[[Sequence[Row]], Batch]

_OTHER_LAYERS: Mapping[Event, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    Event.PLANNED_ALIKE: lambda _: {},
    Event.PLANNED_WITHOUT_MASK: lambda _: {"causal": False},
    Event.PLANNED_OTHER_SCALE: lambda layer: {"sm_scale": 2 * layer["sm_scale"]},
    Event.PLANNED_SPLIT: lambda _: {"fixed_split_size": 1},
    Event.PLANNED_UNSPLIT: lambda _: {"disable_split_kv": True},
}
_OTHER_ROWS: Mapping[Event, Callable[[Sequence[Row]], Sequence[Row]]] = {
    Event.PLANNED_FEWER: lambda rows: rows[: max(1, len(rows) // 2)],
    Event.PLANNED_MORE: lambda rows: [*rows, *rows],
}
IN_GRAPHS = frozenset({Event.PLANNED_ALIKE, Event.PLANNED_OTHER_SCALE, Event.NEIGHBOUR})
"""Events of a wrapper for graphs, whose sizes and addresses are final."""


def live(
    wrapper: Wrapper,
    events: Collection[Event],
    bench: Bench,
    rows: Sequence[Row],
    batch_of: BatchOf,
    layer: Mapping[str, Any],
) -> None:
    """Make the plans of `events`, and reset the workspaces, before `rows` are planned for `layer`."""
    for event in events:
        if event in _OTHER_LAYERS:
            batch_of(rows).plan(wrapper, {**layer, **_OTHER_LAYERS[event](layer)})
        elif event in _OTHER_ROWS:
            batch_of(_OTHER_ROWS[event](rows)).plan(wrapper, layer)
        elif event is Event.PLANNED_LENGTHS:
            lengths = bench.memory.copy("other_seq_lens", torch.tensor([row.kv_len for row in rows], dtype=torch.int32))
            batch_of(rows).plan(wrapper, {**layer, "seq_lens": lengths})
        elif event is Event.PLANNED_CUSTOM_MASK:
            elements = sum(row.q_len * row.kv_len for row in rows)
            if elements <= _MOST_MASKED:
                mask = bench.memory.copy("custom_mask", torch.arange(elements).remainder(3).bool().view(torch.uint8))
                batch_of(rows).plan(wrapper, {**layer, "custom_mask": mask.view(torch.bool)})
        elif event is Event.RESET:
            wrapper.reset()
