"""The life of an object before the plan that is judged: other plans, and changes of its workspaces.

The object has state between calls: a wrapper, a compiled function, a function with a cache. Its earlier uses, which a
case lists and a backend's capability offers, must not affect the calls that follow.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.reference.arguments import EarlierUse

Layer = Mapping[str, Any]
"""The arguments of a plan that do not depend on its rows, by name."""

_Row = TypeVar("_Row")

OTHER_ROWS: Mapping[EarlierUse, Callable[[Sequence[Any]], Sequence[Any]]] = {
    EarlierUse.PLANNED_FEWER: lambda rows: rows[: max(1, len(rows) // 2)],
    EarlierUse.PLANNED_MORE: lambda rows: [*rows, *rows],
}
"""The rows of a plan for fewer requests, and for more."""


@dataclass(frozen=True, kw_only=True)
class Life(Generic[_Row]):
    """The ways to use an object before a plan of `rows` for `layer`.

    `plan` plans other rows for another layer, and calls the object if a plan is just a call. `others` return the layer
    of a use on another layer, or None if there is none for this case. `actions` are uses that plan nothing.
    """

    rows: Sequence[_Row]
    layer: Layer
    plan: Callable[[Sequence[_Row], Layer], None]
    others: Mapping[EarlierUse, Callable[[Layer], Layer | None]] = field(default_factory=dict)
    actions: Mapping[EarlierUse, Callable[[], None]] = field(default_factory=dict)

    def make(self, uses: Collection[EarlierUse]) -> None:
        """Make the plans of `uses` and their actions, in order."""
        for use in uses:
            if use in OTHER_ROWS:
                self.plan(OTHER_ROWS[use](self.rows), self.layer)
            elif use in self.others:
                layer = self.others[use](self.layer)
                if layer is not None:
                    self.plan(self.rows, layer)
            elif use in self.actions:
                self.actions[use]()


def on_another_stream(op: Op, uses: Collection[EarlierUse]) -> Op:
    """Return the op on a separate stream if `uses` say so."""
    return apart(op) if EarlierUse.OTHER_STREAM in uses else op


def apart(op: Op) -> Op:
    """Return the op on a separate stream. It waits for the current stream, and vice versa.

    CUDA promises that work after such a wait sees all writes before it, so a library that launches on the current
    stream is right. FlashInfer says nothing about streams.
    """
    return replace(op, function=partial(on_own_stream, op.function), apart=True)


def on_own_stream(function: Callable[..., Any], /, *positional: Any, **arguments: Any) -> Any:
    """Call a function on a separate stream, which waits for the current one, and vice versa."""
    if not torch.cuda.is_available():
        return function(*positional, **arguments)
    here, other = torch.cuda.current_stream(), torch.cuda.Stream()
    other.wait_stream(here)
    with torch.cuda.stream(other):
        result = function(*positional, **arguments)
    here.wait_stream(other)
    return result
