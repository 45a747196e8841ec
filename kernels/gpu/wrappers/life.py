"""Earlier uses of a wrapper, which must not matter to the plan and the run that follow."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.gpu.wrappers.wrapper import Wrapper
from attnfuzz.kernels.plan import Row
from attnfuzz.reference.arguments import EarlierUse

_MOST_MASKED = 1 << 22
"""Elements of a custom mask above which none is planned: FlashInfer packs them, one request after another."""


@dataclass(frozen=True)
class PlannedBatch:
    """The lists of a plan in guarded memory, by the names of its arguments, and the same on the host, if it is used."""

    placed: Mapping[str, torch.Tensor]
    on_host: Mapping[str, torch.Tensor] | None = None

    def plan(self, wrapper: Wrapper, layer: Mapping[str, Any]) -> None:
        """Plan it for a layer."""
        wrapper.plan(self.placed, layer, self.on_host)


BatchOf = Callable[[Sequence[Row]], PlannedBatch]

_OTHER_LAYERS: Mapping[EarlierUse, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    EarlierUse.PLANNED_ALIKE: lambda _: {},
    EarlierUse.PLANNED_WITHOUT_MASK: lambda _: {"causal": False},
    EarlierUse.PLANNED_OTHER_SCALE: lambda layer: {"sm_scale": 2 * layer["sm_scale"]},
    EarlierUse.PLANNED_SPLIT: lambda _: {"fixed_split_size": 1},
    EarlierUse.PLANNED_UNSPLIT: lambda _: {"disable_split_kv": True},
}
_OTHER_ROWS: Mapping[EarlierUse, Callable[[Sequence[Row]], Sequence[Row]]] = {
    EarlierUse.PLANNED_FEWER: lambda rows: rows[: max(1, len(rows) // 2)],
    EarlierUse.PLANNED_MORE: lambda rows: [*rows, *rows],
}
IN_GRAPHS = frozenset({EarlierUse.PLANNED_ALIKE, EarlierUse.PLANNED_OTHER_SCALE, EarlierUse.NEIGHBOUR})
"""Uses of a wrapper for graphs, whose sizes and addresses are final."""


def live(
    wrapper: Wrapper,
    uses: Collection[EarlierUse],
    bench: Bench,
    rows: Sequence[Row],
    batch_of: BatchOf,
    layer: Mapping[str, Any],
) -> None:
    """Make the plans of `uses`, and reset the workspaces, before `rows` are planned for `layer`."""
    for use in uses:
        if use in _OTHER_LAYERS:
            batch_of(rows).plan(wrapper, {**layer, **_OTHER_LAYERS[use](layer)})
        elif use in _OTHER_ROWS:
            batch_of(_OTHER_ROWS[use](rows)).plan(wrapper, layer)
        elif use is EarlierUse.PLANNED_LENGTHS:
            lengths = bench.memory.copy("other_seq_lens", torch.tensor([row.kv_len for row in rows], dtype=torch.int32))
            batch_of(rows).plan(wrapper, {**layer, "seq_lens": lengths})
        elif use is EarlierUse.PLANNED_CUSTOM_MASK:
            elements = sum(row.q_len * row.kv_len for row in rows)
            if elements <= _MOST_MASKED:
                mask = bench.memory.copy("custom_mask", torch.arange(elements).remainder(3).bool().view(torch.uint8))
                batch_of(rows).plan(wrapper, {**layer, "custom_mask": mask.view(torch.bool)})
        elif use is EarlierUse.RESET:
            wrapper.reset()
