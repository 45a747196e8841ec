"""The life of a function before the call that is judged: calls with other arguments, and tensors that are reused."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from msgspec.structs import replace

from attnfuzz.kernels.arguments.lives import Layer, Life
from attnfuzz.kernels.interface.backend import Bench, Memory
from attnfuzz.kernels.interface.transfers import write
from attnfuzz.kernels.planning.plan import BatchMetadata, Row
from attnfuzz.kernels.planning.queries import place_queries
from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import Geometry

CALLED: Final = (
    EarlierUse.PLANNED_ALIKE,
    EarlierUse.PLANNED_OTHER_SCALE,
    EarlierUse.PLANNED_FEWER,
    EarlierUse.PLANNED_MORE,
    EarlierUse.REUSED_TENSORS,
    EarlierUse.RAN_BEFORE,
)
"""Earlier uses that any function may have."""

_OF_ARGUMENTS: Final = {
    EarlierUse.PLANNED_WITHOUT_MASK: "mask",
    EarlierUse.PLANNED_CUSTOM_MASK: "mask",
    EarlierUse.PLANNED_OTHER_WINDOW: "window_left",
    EarlierUse.PLANNED_OTHER_SOFT_CAP: "soft_cap",
}
"""Earlier uses that need an argument."""

OWN: Final = "life"
"""The parameter of a function that makes earlier uses itself."""

_WINDOWS, _SOFT_CAPS = (-1, 5), (0.0, 5.0)


def lives_of(capability: Capability, promised: Collection[str]) -> tuple[EarlierUse, ...]:
    """Return the earlier uses that can be made of a function with these `promised` arguments."""
    known = {*CALLED, *(use for use, argument in _OF_ARGUMENTS.items() if argument in promised)}
    if capability.device is Device.CUDA:
        known.add(EarlierUse.OTHER_STREAM)
    return tuple(use for use in EarlierUse if use in known)


class CallsFunction(Protocol):
    """The part of a session that its life needs."""

    def call(self, batch: BatchMetadata, query: torch.Tensor, results: Results, extras: Mapping[str, Any]) -> None:
        """Call the function on a batch, with the additional arguments `extras`."""

    def plan(self, rows: Sequence[Row]) -> BatchMetadata:
        """Return the metadata of a batch."""


class FunctionLife:
    """Makes the earlier uses of a case in one step, whose queries are [tokens, q_heads, head_dim_qk]."""

    def __init__(self, case: Case, bench: Bench, capability: Capability, session: CallsFunction) -> None:
        self._case, self._bench, self._capability, self._session = case, bench, capability, session

    def make(self, rows: Sequence[Row], batch: BatchMetadata, query: torch.Tensor, usual: Mapping[str, Any]) -> None:
        """Make the calls before that of `batch` on `query`, whose other arguments are `usual`."""
        tokens = query[: sum(row.q_len for row in rows)]
        layer = {**usual, "mask": None}

        def call(others: Sequence[Row], layer: Layer) -> None:
            drawn = tokens.repeat(2, 1, 1)[: sum(row.q_len for row in others)]
            self._call(self._session.plan(others), place_queries(self._case, self._bench, drawn), layer)

        Life(
            rows=rows,
            layer=layer,
            plan=call,
            others={
                EarlierUse.PLANNED_ALIKE: lambda layer: layer,
                EarlierUse.PLANNED_WITHOUT_MASK: lambda layer: layer,
                EarlierUse.PLANNED_CUSTOM_MASK: lambda layer: {**layer, "mask": self._mask(rows)},
                EarlierUse.PLANNED_OTHER_SCALE: lambda layer: {**layer, "scale": 2 * layer["scale"]},
                EarlierUse.PLANNED_OTHER_WINDOW: self._other_window,
                EarlierUse.PLANNED_OTHER_SOFT_CAP: self._other_soft_cap,
            },
            actions={
                EarlierUse.REUSED_TENSORS: lambda: self._reuse(rows, batch, query, layer),
                EarlierUse.RAN_BEFORE: lambda: self._call(
                    batch, place_queries(self._case, self._bench, query.flip(-1)), usual
                ),
            },
        ).make(self._case.life)

    def _call(self, batch: BatchMetadata, query: torch.Tensor, extras: Mapping[str, Any]) -> None:
        results = Results.place(self._case, self._bench, len(query), prefix="another_")
        self._session.call(batch, query, results, extras)

    def _mask(self, rows: Sequence[Row]) -> torch.Tensor:
        shape = sum(row.q_len for row in rows), max((row.kv_len for row in rows), default=0)
        drawn = torch.arange(shape[0] * shape[1]).remainder(3).bool().view(shape)
        return self._bench.memory.copy("mask", drawn.view(torch.uint8)).view(torch.bool)

    def _other_window(self, layer: Layer) -> Layer | None:
        windows = {window for bucket in self._capability.buckets for window in bucket.windows} or _WINDOWS
        return self._changed(layer, "window_left", windows, lambda value: {"window_left": value})

    def _other_soft_cap(self, layer: Layer) -> Layer | None:
        caps = {cap for bucket in self._capability.buckets for cap in bucket.soft_caps} or _SOFT_CAPS
        return self._changed(layer, "soft_cap", caps, lambda value: {"soft_cap": value})

    def _changed(
        self, layer: Layer, name: str, values: Collection[float], field: Callable[[float], dict[str, Any]]
    ) -> Layer | None:
        """Return the layer with the first other value that the capability covers, or None if there is none."""
        for value in sorted(values):
            if value != layer[name] and self._covers(replace(self._case.geometry, **field(value))):
                return {**layer, name: value}
        return None

    def _covers(self, geometry: Geometry) -> bool:
        buckets = self._capability.buckets
        return not buckets or any(bucket.covers(geometry) for bucket in buckets)

    def _reuse(self, rows: Sequence[Row], batch: BatchMetadata, query: torch.Tensor, layer: Layer) -> None:
        """Call with the batch's own tensors, temporarily filled with the requests in reverse order."""
        other = self._session.plan(rows[::-1])
        named = {name: value for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}
        others = {**{name: getattr(other, name) for name in named}, "query": query.flip(-1)}
        named["query"] = query
        held = {name: value.clone() for name, value in named.items()}
        for name, value in named.items():
            write(value, others[name])
        self._call(batch, query, layer)
        for name, value in named.items():
            write(value, held[name])


class ReusedTensors:
    """Tensors that a function's `arrange` makes: a later one of the same name and shape is written over the first."""

    def __init__(self) -> None:
        self._first: dict[str, torch.Tensor] = {}

    def written(self, arranged: Mapping[str, Any], placed: Mapping[str, Any], memory: Memory) -> dict[str, Any]:
        """Return the `placed` tensors, or the first ones with their contents. Those of the session itself stay."""
        made = dict(placed)
        for name, value in placed.items():
            if not isinstance(value, torch.Tensor) or not value.numel() or memory.holds(arranged[name]):
                continue
            first = self._first.setdefault(name, value)
            if first is not value and (first.shape, first.dtype, first.stride()) == (
                value.shape,
                value.dtype,
                value.stride(),
            ):
                write(first, value)
                made[name] = first
        return made
