"""FlashInfer objects that are planned and run, and allocate an integer workspace of their own.

Their float workspace is guarded. It has the size that the constructors' docstrings recommend: none reports its need.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from attnfuzz.kernels.backend import Bench, Op
from attnfuzz.kernels.gpu.flashinfer_op import call, call_method
from attnfuzz.kernels.gpu.wrappers import wrapper
from attnfuzz.kernels.ops_table import WorkspaceBytes
from attnfuzz.kernels.workspace import SharedWorkspace
from attnfuzz.reference.case import Case

_WORKSPACE = "float_workspace_buffer"


@dataclass(frozen=True, kw_only=True)
class PlannedKind:
    """A class of FlashInfer, with the names of its methods.

    `results` names guarded tensors to which the results of `run` are copied, in order, if it takes no outputs or
    returns them in another layout. A plan for a graph copies its lists to `buffers`, by the constructor's names.
    `zero_floats`: see `wrapper.Workspaces`.
    """

    module: str
    name: str
    plan: str = "plan"
    run: str = "run"
    results: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    zero_floats: bool = False

    @cached_property
    def plan_op(self) -> Op:
        """Its plan, which copies to the device."""
        function = partial(_call, self.plan)
        return Op(f"{self.name}.{self.plan}", function, frozenset({_WORKSPACE, *self.buffers}), self.module, plans=True)

    @cached_property
    def run_op(self) -> Op:
        """Its run."""
        function = partial(_run_into, self) if self.results else partial(_call, self.run)
        writes = frozenset({_WORKSPACE, "out", "lse", *self.results})
        return Op(f"{self.name}.{self.run}", function, writes, self.module)


def _call(name: str, /, *, wrapper: Any, held: frozenset[str], **arguments: Any) -> Any:
    """Call a method. The arguments in `held`, which the object already has, are only recorded."""
    return call_method(wrapper, name, **{key: value for key, value in arguments.items() if key not in held})


def _run_into(kind: PlannedKind, /, *, wrapper: Any, held: frozenset[str], **arguments: Any) -> None:
    """Run, and copy the results to the arguments that they have the names of."""
    returned = _call(kind.run, wrapper=wrapper, held=held.union(kind.results), **arguments)
    for name, result in zip(kind.results, _flat(returned), strict=True):
        arguments[name].copy_(result)


def _flat(returned: Any) -> Iterable[torch.Tensor]:
    if isinstance(returned, torch.Tensor):
        yield returned
    else:
        for part in returned:
            yield from _flat(part)


class Planned:
    """An object of a `PlannedKind` over a workspace. Both launches record the tensors that it holds."""

    def __init__(self, kind: PlannedKind, case: Case, bench: Bench, **arguments: Any) -> None:
        self._kind, self._bench = kind, bench
        floats = wrapper.RECOMMENDED.floats
        need = WorkspaceBytes(floats, 0) if kind.zero_floats else WorkspaceBytes(0, floats)
        self._held: dict[str, Any] = {_WORKSPACE: SharedWorkspace(case, bench, _WORKSPACE).take(need)}
        buffers = {name: value for name, value in arguments.items() if isinstance(value, list | tuple)}
        self._wrapper = call(kind.module, kind.name, **self._held, **arguments)
        self._held |= buffers
        self._lists: dict[str, Any] = {}

    def plan(self, lists: Mapping[str, Any], **arguments: Any) -> None:
        """Plan a batch, whose tensors the kernels may read."""
        self._lists = dict(lists)
        self._launch(self._kind.plan_op, self._held, {**lists, **arguments})

    def run(self, **arguments: Any) -> None:
        """Launch the plan."""
        self._launch(self._kind.run_op, {**self._lists, **self._held}, arguments)

    def _launch(self, op: Op, held: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        self._bench.launcher.launch(op, wrapper=self._wrapper, held=frozenset(held), **held, **arguments)
