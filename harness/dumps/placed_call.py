"""Place one recorded call in a case: a buffer per argument, and its workspace."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from attnfuzz.harness.dumps.contents import BufferShelf
from attnfuzz.harness.dumps.cut_pool import CutPool, PageMap, cut_pool, in_ranges
from attnfuzz.harness.dumps.recorded import ForeignTensor, OtherValue, RecordedCall
from attnfuzz.harness.dumps.understood import Understood, layout_of
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.meaning import Role
from attnfuzz.kernels.native import build, ops
from attnfuzz.reference.calls import Argument, Call, View, literal_number
from attnfuzz.reference.case import Guard

_LOOKED_AT = 8 << 20
"""Bytes at the start of a workspace, where FlashInfer's XQA keeps its semaphores (its docstring of `xqa`)."""


def used_bytes(op: Op, arguments: Mapping[str, Any]) -> int | None:
    """Count the bytes of workspace that a call uses, None if its kernel is not ours. Raises NoCompiler, BuildFailed."""
    if op.function.__module__ != ops.__name__:
        return None
    build.load()
    need = ENTRY_POINTS[op.name].workspace(arguments)
    return None if need is None else need.total


class CaseWorkspaces:
    """The workspaces of all calls of a case. `used` is the most that one of them uses, in bytes, None if unknown.

    The unused rest is cut off, and the used part begins as zeros, since each kernel has its own layout. A workspace no
    larger than `used` is kept as it was.
    """

    def __init__(self, shelf: BufferShelf, used: int | None) -> None:
        self._shelf, self._used = shelf, used
        self._cut: dict[int, View] = {}

    def place(self, name: str, source: ForeignTensor) -> tuple[View, list[str]]:
        """Place a workspace as uint8, cut ones of equal size as one; return it with notes. Raises DumpError."""
        nbytes = math.prod(source.shape) * source.dtype.itemsize
        if self._used is None or nbytes <= self._used:
            return self._shelf.keep(name, _as_bytes(source.read())), []
        if nbytes in self._cut:
            return self._cut[nbytes], [f"{name} has the size of an earlier call's, and is assumed to be the same."]
        start = source.rows(torch.arange(min(_LOOKED_AT // source.dtype.itemsize, source.shape[0])))
        began = "with" if not _as_bytes(start).any() else "not only with"
        now = f"it is now {self._used:,} bytes of zeros, as many as the native kernel uses"
        if not self._used:
            now = "it is now empty, because the native kernel uses none"
        note = f"{name} had {nbytes:,} bytes, and began {began} zeros; {now}."
        self._cut[nbytes] = self._shelf.keep(name, torch.zeros(self._used, dtype=torch.uint8))
        return self._cut[nbytes], [note]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)


class PlacedCall:
    """One call in a case: its buffers are named `prefix` + argument; with `judges_lse`, its LSE is judged."""

    def __init__(
        self, asked: Understood, shelf: BufferShelf, workspaces: CaseWorkspaces, prefix: str, *, judges_lse: bool
    ) -> None:
        self._call, self._given, self._parameters = asked.call, asked.given, asked.parameters
        self._spans, self._breaks = asked.spans, bool(asked.breaches)
        self._shelf, self._workspaces, self._prefix = shelf, workspaces, prefix
        self._judges_lse = judges_lse
        self.notes = [origin(asked.call), *asked.call.lost]
        self._literal: dict[str, Argument] = {}
        self._cache: tuple[CutPool, PageMap] | None = None

    def call(self) -> Call:
        """Return the call, with its tensors on the shelf."""
        self._place_cache()
        for name, value in self._call.arguments.items():
            if name not in self._literal:
                self._place(name, value)
        if self._is_attention:
            self._place_outputs()
        writes = () if self._cache is None else self._cache[0].writes
        return Call(op=self._call.function, arguments=self._literal, writes=writes)

    @property
    def guard(self) -> Guard:
        """The side at which a page id outside of the pool leaves it."""
        pages = [page for span in self._spans for page in span.pages]
        below = min(pages, default=0) < 0
        return Guard.LEFT if below and self._cache and max(pages) < self._cache[1].total else Guard.RIGHT

    @property
    def _is_attention(self) -> bool:
        return any(parameter.role is Role.QUERY for parameter in self._parameters.values())

    def _place_cache(self) -> None:
        """Put the needed pages on the shelf, and their new ids into the page table."""
        parts = [parameter for parameter in self._parameters.values() if parameter.axes[:1] == ("pages",)]
        tables = [parameter for parameter in self._parameters.values() if parameter.role is Role.PAGE_TABLE]
        if not parts or not tables:
            return
        sources = [self._source(parameter.name) for parameter in parts]
        table = self._given[tables[0].name]
        total, page_size = sources[0].shape[0], sources[0].shape[parts[0].axes.index("slots")]
        pages = PageMap.of(total, self._spans, table)
        argument = parts[0].name.partition("[")[0]
        cut = cut_pool(self._shelf, self._prefix, parts, sources, pages, pages.covered(self._spans, page_size))
        self._cache = cut, pages
        self._literal[argument] = cut.parts[0] if len(parts) == 1 else list(cut.parts)
        self._literal[tables[0].name] = self._put(tables[0].name, pages.renumbered(table))
        nbytes = sum(math.prod(source.shape) * source.dtype.itemsize for source in sources)
        self.notes += [*page_notes(argument, pages, page_size, nbytes), *cut.notes]

    def _place(self, name: str, value: Any) -> None:
        role = self._parameters[name].role if name in self._parameters else None
        given = self._given[name]
        if isinstance(value, tuple):
            self._literal[name] = [self._put_source(f"{name}_{index}", item) for index, item in enumerate(value)]
        elif isinstance(value, OtherValue):
            unusable = f"{value.text} ({value.type_name}), which a case can't hold"
            self.notes.append(f"{name} was {unusable}: its default applies.")
        elif isinstance(value, torch.dtype):
            # The output's dtype; the output is passed.
            return
        elif not isinstance(value, ForeignTensor) or not isinstance(given, torch.Tensor):
            self._place_scalar(name, given, was_tensor=isinstance(value, ForeignTensor))
        elif self._is_attention and role in (Role.OUT, Role.LSE):
            self._literal[name] = self._shelf.output(self._prefix + name, value.shape, value.dtype, layout_of(value))
        elif role is Role.WORKSPACE:
            self._literal[name], notes = self._workspaces.place(self._prefix + name, value)
            self.notes += notes
        elif given.is_meta:
            self._literal[name] = self._put_source(name, value)
        else:
            self._literal[name] = self._put(name, given)

    def _place_scalar(self, name: str, number: Argument, *, was_tensor: bool) -> None:
        self._literal[name] = literal_number(number) if isinstance(number, float) else number
        if was_tensor:
            self.notes.append(f"{name} was a tensor of one number, and is passed as a number now.")

    def _place_outputs(self) -> None:
        """Pass the results that the kernel would allocate itself, so that they are guarded and judged."""
        query = self._given["query"]
        wanted = self._call.arguments.get("out_dtype")
        shapes = {}
        if not isinstance(self._literal.get("out"), View):
            dtype = wanted if isinstance(wanted, torch.dtype) else query.dtype
            shapes["out"] = (*query.shape[:-1], self._value_dim()), dtype
        has_lse = isinstance(self._literal.get("lse"), View)
        if not has_lse and (self._given.get("return_lse") or (self._judges_lse and not self._breaks)):
            shapes["lse"] = (math.prod(query.shape[:-2]), query.shape[-2]), torch.float32
        for name, (shape, dtype) in shapes.items():
            self._literal[name] = self._shelf.output(self._prefix + name, shape, dtype)
        if has_lse or "lse" in shapes:
            self._literal["return_lse"] = True
        if shapes:
            self.notes.append(f"Allocated for the call, so that it is guarded and judged: {' and '.join(shapes)}.")

    def _value_dim(self) -> int:
        """Return the head dim of the output."""
        if "kv_lora_rank" in self._given:
            rank: int = self._given["kv_lora_rank"]
            return rank
        values = [each.name for each in self._parameters.values() if each.role in (Role.CACHE, Role.VALUE)]
        return self._source(values[-1]).shape[-1]

    def _source(self, name: str) -> ForeignTensor:
        """Return the tensor of a parameter: "kv_cache[1]" is the second of a pair."""
        argument, _, index = name.partition("[")
        value: Any = self._call.arguments[argument]
        tensor: ForeignTensor = value[int(index.rstrip("]"))] if index else value
        return tensor

    def _put(self, name: str, tensor: torch.Tensor) -> View:
        """Put an integer tensor on the shelf, with its strides."""
        return self._shelf.put(self._prefix + name, tuple(tensor.shape), tensor.dtype, lambda: tensor, tensor.stride())

    def _put_source(self, name: str, source: ForeignTensor) -> View:
        stride = layout_of(source)
        if source.stride not in (None, stride):
            self.notes.append(f"{name} had the strides {list(source.stride or ())}; it is dense now.")
        return self._shelf.put(self._prefix + name, source.shape, source.dtype, source.read, stride)


def origin(call: RecordedCall) -> str:
    """Return a sentence that identifies a recorded call."""
    # A compiler's name and a date follow Python's version.
    versions = ", ".join(f"{name} {text.partition(' ')[0]}" for name, text in call.versions.items())
    return (
        f"It was call {call.sequence} of {call.function} in process {call.process}, {call.status}"
        f"{f' ({versions})' if versions else ''}: {call.folder.name}."
    )


def page_notes(name: str, pages: PageMap, page_size: int, nbytes: int) -> list[str]:
    """Return sentences on the pages of a pool of `nbytes` that a case keeps."""
    kept = len(pages.kept)
    held = f"{name} had {count(pages.total, 'page')} of {page_size} slots, {nbytes:,} bytes"
    notes = [f"{held}; {kept:,} are kept, renumbered in the same order: {in_ranges(pages.kept) or 'none'}."]
    if pages.spare:
        notes.append(f"Page {kept} is poison, and replaces every other page of the pool that the page table refers to.")
    return notes
