"""Earlier uses of a FlashInfer object, which must not matter to the plan and the run that follow."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

import torch

from attnfuzz.kernels.arguments.lives import Layer, Life
from attnfuzz.kernels.gpu.wrappers.other_layers import other_layer, uses_of
from attnfuzz.kernels.interface.backend import Memory
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.geometry import Geometry

_MOST_MASKED = 1 << 22
"""Elements of a custom mask above which none is planned: FlashInfer packs them, one request after another."""


class _Lengths(Protocol):
    """A row of a plan, or a request."""

    @property
    def q_len(self) -> int:
        """Its queries."""

    @property
    def kv_len(self) -> int:
        """Its keys."""


_Row = TypeVar("_Row", bound=_Lengths)


@dataclass(frozen=True)
class WrapperLife(Generic[_Row]):
    """The ways to use an object before a plan of `rows` for `layer`.

    `plan` plans other rows for another layer. `reset` replaces its workspaces, and `overwrite`
    fills them. There are modules for the layers of `buckets`.
    """

    rows: Sequence[_Row]
    layer: Layer
    geometry: Geometry
    plan: Callable[[Sequence[_Row], Layer], None]
    reset: Callable[[], None]
    overwrite: Callable[[], None]
    buckets: Sequence[Bucket] = ()


IN_GRAPHS: Final = frozenset(
    {EarlierUse.PLANNED_ALIKE, EarlierUse.PLANNED_OTHER_SCALE, EarlierUse.OVERWRITTEN, EarlierUse.NEIGHBOUR}
)
"""Uses of a wrapper for graphs, whose sizes and addresses are final. A copy is used in graphs too."""


def live(past: WrapperLife[_Row], uses: Collection[EarlierUse], memory: Memory) -> None:
    """Make the plans of `uses`, reset the workspaces and overwrite them."""

    def with_lengths(layer: Layer) -> Layer:
        lengths = torch.tensor([row.kv_len for row in past.rows], dtype=torch.int32)
        return {**layer, "seq_lens": memory.copy("other_seq_lens", lengths)}

    def with_mask(layer: Layer) -> Layer | None:
        elements = sum(row.q_len * row.kv_len for row in past.rows)
        if elements > _MOST_MASKED:
            return None
        mask = memory.copy("custom_mask", torch.arange(elements).remainder(3).bool().view(torch.uint8))
        return {**layer, "custom_mask": mask.view(torch.bool)}

    def elsewhere(use: EarlierUse, layer: Layer) -> Layer:
        return other_layer(use, layer, past.geometry, past.buckets)

    others: dict[EarlierUse, Callable[[Layer], Layer | None]] = {
        EarlierUse.PLANNED_ALIKE: lambda layer: layer,
        EarlierUse.PLANNED_WITHOUT_MASK: lambda layer: {**layer, "causal": False},
        EarlierUse.PLANNED_CUSTOM_MASK: with_mask,
        EarlierUse.PLANNED_OTHER_SCALE: lambda layer: {**layer, "sm_scale": 2 * layer["sm_scale"]},
        EarlierUse.PLANNED_SPLIT: lambda layer: {**layer, "fixed_split_size": 1},
        EarlierUse.PLANNED_UNSPLIT: lambda layer: {**layer, "disable_split_kv": True},
        EarlierUse.PLANNED_LENGTHS: with_lengths,
        **{use: partial(elsewhere, use) for use in uses_of(past.buckets)},
    }
    actions = {EarlierUse.RESET: past.reset, EarlierUse.OVERWRITTEN: past.overwrite}
    Life(rows=past.rows, layer=past.layer, plan=past.plan, others=others, actions=actions).make(uses)
