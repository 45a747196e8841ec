"""Earlier uses of a FlashInfer object, which must not matter to the plan and the run that follow."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import torch

from attnfuzz.kernels.backend import Memory, Op
from attnfuzz.kernels.gpu.wrappers.other_layers import other_layer, uses_of
from attnfuzz.kernels.workspace import NAN_BYTE
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
Layer = Mapping[str, Any]


@dataclass(frozen=True)
class Past(Generic[_Row]):
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


_OTHER_LAYERS: Mapping[EarlierUse, Callable[[Layer], dict[str, Any]]] = {
    EarlierUse.PLANNED_ALIKE: lambda _: {},
    EarlierUse.PLANNED_WITHOUT_MASK: lambda _: {"causal": False},
    EarlierUse.PLANNED_OTHER_SCALE: lambda layer: {"sm_scale": 2 * layer["sm_scale"]},
    EarlierUse.PLANNED_SPLIT: lambda _: {"fixed_split_size": 1},
    EarlierUse.PLANNED_UNSPLIT: lambda _: {"disable_split_kv": True},
}
OTHER_ROWS: Mapping[EarlierUse, Callable[[Sequence[Any]], Sequence[Any]]] = {
    EarlierUse.PLANNED_FEWER: lambda rows: rows[: max(1, len(rows) // 2)],
    EarlierUse.PLANNED_MORE: lambda rows: [*rows, *rows],
}
IN_GRAPHS: Final = frozenset(
    {EarlierUse.PLANNED_ALIKE, EarlierUse.PLANNED_OTHER_SCALE, EarlierUse.OVERWRITTEN, EarlierUse.NEIGHBOUR}
)
"""Uses of a wrapper for graphs, whose sizes and addresses are final. What is copied is used in graphs too."""


def live(past: Past[_Row], uses: Collection[EarlierUse], memory: Memory) -> None:
    """Make the plans of `uses`, reset the workspaces and overwrite them."""
    rows, layer = past.rows, past.layer
    for use in uses:
        if use in _OTHER_LAYERS:
            past.plan(rows, {**layer, **_OTHER_LAYERS[use](layer)})
        elif use in OTHER_ROWS:
            past.plan(OTHER_ROWS[use](rows), layer)
        elif use in uses_of(past.buckets):
            past.plan(rows, other_layer(use, layer, past.geometry, past.buckets))
        elif use is EarlierUse.PLANNED_LENGTHS:
            lengths = memory.copy("other_seq_lens", torch.tensor([row.kv_len for row in rows], dtype=torch.int32))
            past.plan(rows, {**layer, "seq_lens": lengths})
        elif use is EarlierUse.PLANNED_CUSTOM_MASK:
            elements = sum(row.q_len * row.kv_len for row in rows)
            if elements <= _MOST_MASKED:
                mask = memory.copy("custom_mask", torch.arange(elements).remainder(3).bool().view(torch.uint8))
                past.plan(rows, {**layer, "custom_mask": mask.view(torch.bool)})
        elif use is EarlierUse.RESET:
            past.reset()
        elif use is EarlierUse.OVERWRITTEN:
            past.overwrite()


_INTS = re.compile(r"_?int_workspace_buffer(_[pd])?")


def int_workspaces(owner: Any) -> Iterator[torch.Tensor]:
    """The workspaces of integers that a FlashInfer object and its parts have allocated on the device.

    They are made by torch.empty: no plan may count on their contents.
    """
    for name, value in vars(owner).items():
        parts = value if isinstance(value, list | tuple) else [value]
        if _INTS.fullmatch(name):
            yield value
        elif name.endswith(("_wrapper", "_wrappers")):
            for part in parts:
                yield from int_workspaces(part)


def overwrite(workspaces: Collection[torch.Tensor]) -> None:
    """Fill workspaces with NaN, or -1."""
    for workspace in workspaces:
        workspace.view(torch.uint8).fill_(NAN_BYTE)


def on_another_stream(op: Op, uses: Collection[EarlierUse]) -> Op:
    """The op on a stream of its own if `uses` say so: it waits for the present one, which then waits for it.

    CUDA promises that work after such a wait sees all writes before it, so a library that launches on the current
    stream is right. FlashInfer says nothing about streams.
    """
    if EarlierUse.OTHER_STREAM not in uses:
        return op
    return replace(op, function=partial(_apart, op.function))


def _apart(function: Callable[..., Any], /, **arguments: Any) -> Any:
    if not torch.cuda.is_available():
        return function(**arguments)
    here, other = torch.cuda.current_stream(), torch.cuda.Stream()
    other.wait_stream(here)
    with torch.cuda.stream(other):
        result = function(**arguments)
    here.wait_stream(other)
    return result
