"""A FlashInfer wrapper in guarded memory: created, planned repeatedly, and run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.kernels.arguments.lives import on_another_stream
from attnfuzz.kernels.gpu.flashinfer_op import call_method
from attnfuzz.kernels.gpu.library_ops import library_op, object_ops, overwrite
from attnfuzz.kernels.gpu.wrappers import masks
from attnfuzz.kernels.interface.backend import Bench, Fill, Op, Unsupported
from attnfuzz.kernels.interface.library_call import Action, LibraryCall, OnHost
from attnfuzz.kernels.planning.workspace import NAN_BYTE
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.case import Case, Pace, Workspace
from attnfuzz.reference.geometry import Geometry

_ALIGNMENT = 16
"""Bytes: flashinfer.utils._check_workspace_buffer_alignment rejects less."""


@dataclass(frozen=True)
class WorkspaceNeed:
    """Bytes that a plan needs of each workspace."""

    floats: int
    ints: int


RECOMMENDED = WorkspaceNeed(floats=128 << 20, ints=8 << 20)
"""For releases and kernels that do not report it: the size recommended by the constructors' docstrings, and the size of
the integer workspace that the constructors allocate."""


class Workspaces:
    """Workspaces of exactly the largest need so far, in guarded memory; sizes are rounded up to 16 bytes.

    They are replaced when a plan needs more, also `floats` that belong to another wrapper. Initially they are zero; NaN
    if the case wants them DIRTY and zeros are not required. BatchDecodeWithPagedKVCacheWrapper requires floats that are
    zero at first use (docstring of its constructor); for prefill they are only said to be reserved.
    """

    def __init__(self, case: Case, bench: Bench, *, zero_floats: bool, floats: torch.Tensor | None = None) -> None:
        self._bench = bench
        self._dirty_ints = case.workspace is Workspace.DIRTY
        self._dirty_floats = self._dirty_ints and not zero_floats
        self.floats = self._new("float_workspace_buffer", 0, dirty=False) if floats is None else floats
        self.ints: torch.Tensor | None = None

    def provide(self, need: WorkspaceNeed) -> bool:
        """Grow the workspaces as needed. Returns True if a buffer was reallocated."""
        changed = False
        if self.floats.numel() < need.floats:
            self.floats = self._new("float_workspace_buffer", need.floats, dirty=self._dirty_floats)
            changed = True
        if self.ints is None or self.ints.numel() < need.ints:
            self.ints = self._new("int_workspace_buffer", need.ints, dirty=self._dirty_ints)
            changed = True
        return changed

    def _new(self, name: str, nbytes: int, *, dirty: bool) -> torch.Tensor:
        size = -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        workspace = self._bench.memory.tensor(name, (size,), torch.uint8, fill=Fill.ZEROS)
        if dirty:
            workspace.fill_(NAN_BYTE)
        return workspace


_WORKSPACES = ("float_workspace_buffer", "int_workspace_buffer")


@dataclass(frozen=True, kw_only=True)
class WrapperKind:
    """One of FlashInfer's wrapper classes, with one of its backends.

    `lists` are its plan's names for the tensors of a batch, and `buffers` its constructor's names for them in a graph.
    `zero_floats`: see Workspaces. `splits`: whether its kernel may split a request's keys into parts, whose results are
    rounded and then merged, if the wrapper cannot report that of a plan. `packed_masks`: whether a plan gets the bits
    of masks, and not bools, which it packs. `positional` are the first parameters of its run's kernel, if that has more
    than the method.
    """

    module: str
    name: str
    backend: str
    lists: Mapping[str, str]
    buffers: Mapping[str, str]
    zero_floats: bool = False
    splits: bool = True
    packed_masks: bool = False
    positional: tuple[str, ...] = ()

    def constructed(self, geometry: Geometry, common: Mapping[str, Any], *, in_graph: bool) -> dict[str, Any]:
        """Return the arguments of its constructor, without the buffers of a graph."""
        del geometry
        return {"backend": self.backend, "use_cuda_graph": in_graph, **common}

    def launched(
        self,
        bench: Bench,
        geometry: Geometry,
        common: Mapping[str, Any],
        buffers: Mapping[str, torch.Tensor] | None = None,
    ) -> Any:
        """Launch the constructor with common arguments; `buffers`, by its own names, are for a graph."""
        arguments = self.constructed(geometry, common, in_graph=bool(buffers))
        return bench.launcher.launch(self.object_ops[Action.MAKE], **arguments, **(buffers or {}))

    @property
    def object_ops(self) -> Mapping[str, Op]:
        """Those that make an object, copy it, and replace its workspaces."""
        workspaces = frozenset({*_WORKSPACES, "workspace_buffer", *self.buffers.values(), *masks.BUFFERS})
        return object_ops(self.module, self.name, workspaces, reset=_WORKSPACES)

    @property
    def plan_op(self) -> Op:
        """Its plan: it copies to the device, and into a graph's buffers."""
        return library_op(self._method("plan"), {*_WORKSPACES, *self.buffers.values(), *masks.BUFFERS}, plans=True)

    @property
    def run_op(self) -> Op:
        """Its run."""
        return library_op(self._method("run", self.positional), {*_WORKSPACES, "out", "lse"})

    @property
    def ops(self) -> tuple[Op, ...]:
        """All of them."""
        return self.plan_op, self.run_op, *self.object_ops.values()

    def _method(self, name: str, positional: tuple[str, ...] = ()) -> LibraryCall:
        return LibraryCall(action=Action.METHOD, module=self.module, name=self.name, method=name, positional=positional)


_WITHOUT_SIZE = ("non_blocking", "use_token_head_sf")
"""Arguments of plans that `workspace_size` lacks."""


class Wrapper:
    """A wrapper and its workspaces. With `buffers`, by the form's names, it is for graphs: plans are copied there.

    `mask_buffers` are those of a graph under custom masks, by the constructor's names. One with a `neighbour` shares
    its workspace of floats, as all wrappers of a server do (SGLang's global_workspace_buffer, vLLM's
    FlashInferMetadataBuilder._get_workspace_buffer).

    `roundings` counts the roundings of an output element to its dtype by the kernels of the last plan: one, and another
    if the keys of a request are split, whose partial results have the dtype of the output (tmp_v of
    BatchPrefillWithPagedKVCacheDispatched, and so on). A plan that splits needs a workspace of floats.
    """

    def __init__(
        self,
        form: WrapperKind,
        case: Case,
        bench: Bench,
        kv_layout: str,
        buffers: Mapping[str, torch.Tensor] | None = None,
        mask_buffers: Mapping[str, torch.Tensor] | None = None,
        neighbour: "Wrapper | None" = None,
    ) -> None:
        self._form, self._case, self._bench = form, case, bench
        self._buffers = {} if buffers is None else {form.buffers[name]: buffers[name] for name in form.buffers}
        self._buffers |= mask_buffers or {}
        floats = None if neighbour is None else neighbour._workspaces.floats  # noqa: SLF001 - of the same class
        self._workspaces: Workspaces = Workspaces(case, bench, zero_floats=form.zero_floats, floats=floats)
        common = {"float_workspace_buffer": self._workspaces.floats, "kv_layout": kv_layout}
        self._wrapper = form.launched(bench, case.geometry, common, self._buffers)
        self._planned: dict[str, torch.Tensor] = {}
        self._ahead = case.pace is Pace.LATE
        self._run_op = form.run_op if self._buffers else on_another_stream(form.run_op, case.life)
        self.roundings = 1

    def reserve(self, arguments: Mapping[str, Any]) -> bool:
        """Grow the workspaces for a plan, whose lists may lie on the host. Returns True if one was reallocated.

        Reallocation invalidates the previous plan.
        """
        need = self._need(arguments)
        splits = self._form.splits if need is None else need.floats > 0
        self.roundings = 2 if splits else 1
        changed = self._workspaces.provide(need or RECOMMENDED)
        if changed:
            self._replace_workspaces()
        return changed

    def reset(self) -> None:
        """Replace the workspaces by others of the same sizes, which invalidates the previous plan."""
        before = self._workspaces
        if before.ints is None:
            return
        need = WorkspaceNeed(floats=before.floats.numel(), ints=before.ints.numel())
        self._workspaces = Workspaces(self._case, self._bench, zero_floats=self._form.zero_floats)
        self._workspaces.provide(need)
        self._replace_workspaces()

    def _replace_workspaces(self) -> None:
        reset = self._form.object_ops[Action.METHOD]
        self._bench.launcher.launch(reset, wrapper=self._wrapper, **self._held_workspaces())

    def overwrite(self) -> None:
        """Overwrite the workspaces, but for one of floats that has to be zero at first: a kernel may keep it so."""
        ints = () if self._workspaces.ints is None else (self._workspaces.ints,)
        overwrite((*ints, *(() if self._form.zero_floats else (self._workspaces.floats,))))

    def plan(
        self,
        lists: Mapping[str, torch.Tensor],
        layer: Mapping[str, Any],
        on_host: Mapping[str, torch.Tensor] | None = None,
        mask: Mapping[str, Any] | None = None,
    ) -> None:
        """Plan a batch of some lists for a layer, with a workspace that is large enough, under `mask_arguments`.

        Its size is computed from the lists `on_host`: the wrapper would copy others to the host, and wait for each.
        """
        self.reserve({**(on_host or lists), **layer})
        layer = {**layer, **(mask or {})}
        held = {**self._held_workspaces(), **self._buffers}
        if self._ahead and on_host is not None:
            # Planning with lists on the device waits for it, so a server that runs ahead passes lists on the host.
            self._planned = {}
            self._launch(
                self._form.plan_op, held, {**{name: OnHost(value) for name, value in on_host.items()}, **layer}
            )
        else:
            self._planned = dict(lists)
            self._launch(self._form.plan_op, held, {**lists, **layer})
        self._planned |= {name: value for name, value in layer.items() if name == masks.PACKED}
        if EarlierUse.COPIED in self._case.life:
            copy = self._form.object_ops[Action.COPY]
            self._wrapper = self._bench.launcher.launch(copy, wrapper=self._wrapper)

    def run(self, **arguments: Any) -> None:
        """Launch the plan. Without buffers, the kernel reads the plan's own tensors."""
        held = {**self._held_workspaces(), **(self._buffers or self._planned)}
        self._launch(self._run_op, held, arguments)

    def _held_workspaces(self) -> dict[str, torch.Tensor]:
        assert self._workspaces.ints is not None
        return {"float_workspace_buffer": self._workspaces.floats, "int_workspace_buffer": self._workspaces.ints}

    def _launch(self, op: Op, held: Mapping[str, torch.Tensor], arguments: Mapping[str, Any]) -> None:
        """Launch a method, and record the wrapper's tensors as well: they are read, and a fault may hit them."""
        self._bench.launcher.launch(op, wrapper=self._wrapper, held=frozenset(held), **held, **arguments)

    def _need(self, arguments: Mapping[str, Any]) -> WorkspaceNeed | None:
        """Return the workspace that the wrapper reports for a plan; None if it cannot."""
        try:
            sized = {name: value for name, value in arguments.items() if name not in _WITHOUT_SIZE}
            floats, ints = call_method(self._wrapper, "workspace_size", **sized)
        except (Unsupported, NotImplementedError):
            return None
        return WorkspaceNeed(floats=floats, ints=ints)
