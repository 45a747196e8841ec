"""FlashInfer objects that are planned and run, and allocate an integer workspace of their own.

Their float workspace is guarded. It has the size that the constructors' docstrings recommend: none reports its need.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch

from attnfuzz.kernels.arguments.lives import on_another_stream
from attnfuzz.kernels.gpu.library_ops import library_op, object_ops, overwrite, own_workspaces
from attnfuzz.kernels.gpu.wrappers import wrapper
from attnfuzz.kernels.gpu.wrappers.life import WrapperLife, live
from attnfuzz.kernels.interface.backend import Bench, Fill, Op
from attnfuzz.kernels.interface.library_call import OWN_INTEGERS, Action, LibraryCall
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.case import Case

_WORKSPACE = "float_workspace_buffer"


@dataclass(frozen=True, kw_only=True)
class PlannedKind:
    """A class of FlashInfer, with the names of its methods.

    `results` names guarded tensors to which the results of `run` are copied, in order, if it takes no outputs or
    returns them in another layout. A plan for a graph copies its lists to `buffers`, by the constructor's names.
    `zero_floats`: see `wrapper.Workspaces`. One that `has_levels` has an integer workspace for each.
    """

    module: str
    name: str
    plan: str = "plan"
    run: str = "run"
    results: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()
    zero_floats: bool = False
    has_levels: bool = False

    @cached_property
    def plan_op(self) -> Op:
        """Its plan, which copies to the device."""
        return library_op(self._method(self.plan), (_WORKSPACE, *self.buffers), plans=True)

    @cached_property
    def run_op(self) -> Op:
        """Its run."""
        return library_op(self._method(self.run, self.results), (*self.outputs, _WORKSPACE))

    @cached_property
    def object_ops(self) -> Mapping[str, Op]:
        """Those that make an object, copy it, and replace and fill its workspaces."""
        reset = (_WORKSPACE, "int_workspace_buffer")
        return object_ops(
            self.module, self.name, frozenset({_WORKSPACE, *self.buffers}), reset=reset, filled=OWN_INTEGERS
        )

    @property
    def ops(self) -> tuple[Op, ...]:
        """All of them."""
        return self.plan_op, self.run_op, *self.object_ops.values()

    def _method(self, name: str, results: tuple[str, ...] = ()) -> LibraryCall:
        return LibraryCall(action=Action.METHOD, module=self.module, name=self.name, method=name, results=results)

    @property
    def outputs(self) -> frozenset[str]:
        """The arguments of its run that it writes."""
        return frozenset({"out", "lse", *self.results})


class Planned:
    """An object of a `PlannedKind` over a workspace. Both launches record the tensors that it holds.

    One with a `neighbour` shares its workspace of floats.
    """

    def __init__(
        self, kind: PlannedKind, case: Case, bench: Bench, neighbour: "Planned | None" = None, **arguments: Any
    ) -> None:
        self._kind, self._case, self._bench = kind, case, bench
        floats = self._new_floats() if neighbour is None else neighbour._held[_WORKSPACE]  # noqa: SLF001 - of the same class
        self._held: dict[str, Any] = {_WORKSPACE: floats}
        buffers = {name: value for name, value in arguments.items() if isinstance(value, list | tuple)}
        self._wrapper = bench.launcher.launch(kind.object_ops[Action.MAKE], **self._held, **arguments)
        self._held |= buffers
        self._lists: dict[str, Any] = {}
        self._run_op = kind.run_op if buffers else on_another_stream(kind.run_op, case.life)

    def _new_floats(self) -> torch.Tensor:
        floats = wrapper.RECOMMENDED.floats
        need = WorkspaceBytes(floats, 0) if self._kind.zero_floats else WorkspaceBytes(0, floats)
        return SharedWorkspace(self._case, self._bench, _WORKSPACE).take(need)

    def reset(self) -> None:
        """Replace the workspaces by others of the same sizes, which invalidates the previous plan."""
        memory = self._bench.memory
        ints = [
            memory.tensor("int_workspace_buffer", each.shape, each.dtype, fill=Fill.ZEROS)
            for each in own_workspaces(self._wrapper, OWN_INTEGERS)
        ]
        self._held[_WORKSPACE] = self._new_floats()
        others = ints if self._kind.has_levels else ints[0]
        self._on_object(Action.METHOD, float_workspace_buffer=self._held[_WORKSPACE], int_workspace_buffer=others)

    def overwrite(self) -> None:
        """Overwrite the workspaces, but for one of floats that has to be zero at first: a kernel may keep it so."""
        self._on_object(Action.FILL)
        if not self._kind.zero_floats:
            overwrite([self._held[_WORKSPACE]])

    def plan(self, lists: Mapping[str, Any], **arguments: Any) -> None:
        """Plan a batch, whose tensors the kernels may read."""
        self._lists = dict(lists)
        self._launch(self._kind.plan_op, self._held, {**lists, **arguments})
        if EarlierUse.COPIED in self._case.life:
            self._wrapper = self._on_object(Action.COPY)

    def run(self, **arguments: Any) -> None:
        """Launch the plan."""
        self._launch(self._run_op, {**self._lists, **self._held}, arguments)

    def run_on_others(self, **arguments: Any) -> None:
        """Launch the plan on queries with reversed elements, into outputs that are not used."""
        memory = self._bench.memory
        others = {
            name: memory.tensor(f"another_{name}", value.shape, value.dtype, fill=Fill.OUTPUT)
            for name, value in arguments.items()
            if name in self._kind.outputs
        }
        others |= {
            name: memory.copy(name, value.flip(-1)) for name, value in arguments.items() if name in ("q", "q_p", "q_d")
        }
        self.run(**{**arguments, **others})

    def _on_object(self, action: Action, **arguments: Any) -> Any:
        return self._bench.launcher.launch(self._kind.object_ops[action], wrapper=self._wrapper, **arguments)

    def _launch(self, op: Op, held: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        self._bench.launcher.launch(op, wrapper=self._wrapper, held=frozenset(held), **held, **arguments)


_Row = TypeVar("_Row", bound=Any)


@dataclass(frozen=True, kw_only=True)
class LivingCall(Generic[_Row]):
    """A plan of `rows` for a `layer` and its run with `arguments`, after the earlier uses that the case asks for.

    `make` creates an object, a neighbour of another one if there is one. `lists` returns the arguments of a plan that
    depend on its rows. There are modules for the layers of `buckets`.
    """

    case: Case
    bench: Bench
    make: Callable[[Planned | None], Planned]
    lists: Callable[[Sequence[_Row]], Mapping[str, Any]]
    rows: Sequence[_Row]
    layer: Mapping[str, Any]
    arguments: Mapping[str, Any]
    buckets: Sequence[Bucket] = ()

    def carry_out(self, wrapper: Planned) -> None:
        """Use the object, plan it, let its neighbour run, and run it."""
        self.plan(wrapper, self.case.life)
        if EarlierUse.RAN_BEFORE in self.case.life:
            wrapper.run_on_others(**self.arguments)
        self.let_neighbour_run(wrapper)
        wrapper.run(**self.arguments)

    def plan(self, wrapper: Planned, uses: Collection[EarlierUse]) -> None:
        """Use the object for other plans, then plan it."""

        def plan(others: Sequence[_Row], layer: Mapping[str, Any]) -> None:
            wrapper.plan(self.lists(others), **layer)

        past: WrapperLife[_Row] = WrapperLife(
            self.rows, self.layer, self.case.geometry, plan, wrapper.reset, wrapper.overwrite, self.buckets
        )
        live(past, uses, self.bench.memory)
        plan(self.rows, self.layer)

    def let_neighbour_run(self, wrapper: Planned) -> None:
        """Plan and run another object on the same workspace of floats, if the case has one."""
        if EarlierUse.NEIGHBOUR in self.case.life:
            other = self.make(wrapper)
            other.plan(self.lists(self.rows), **self.layer)
            other.run_on_others(**self.arguments)
