"""Stands for a Tracer: keeps the launches of backends."""

from dataclasses import dataclass, field
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Op


@dataclass(frozen=True)
class Launched:
    """A launch, with copies of its tensors as they were."""

    op: Op
    arguments: dict[str, Any]


@dataclass
class Recorder:
    """Keeps every launch of a kernel or a plan, in order."""

    launches: list[Launched] = field(default_factory=list)
    with_own: bool = False

    def begin_step(self, index: int, mode: str, *, related: bool = False) -> None:
        """Steps are not distinguished."""

    def begin_again(self) -> None:
        """Rejected launches are kept."""

    def end(self) -> None:
        """Those that follow failed ones are kept, too."""

    def launch(self, op: Op, arguments: dict[str, Any]) -> None:
        """Keep one, unless it makes or changes an object."""
        if op.helps and op.library is not None:
            return
        self.launches.append(Launched(op, {name: _copied(value) for name, value in arguments.items()}))

    def returned(self, result: Any = None, *, raised: bool = False) -> None:
        """What a launch gave is not kept."""

    def captured(self, graph: object, launches: Any) -> None:
        """What a graph captures is kept when it is replayed."""

    def replayed(self, graph: object) -> bool:
        """Its launches are kept one by one."""
        return False


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
