"""Tracing: turn a step into its backend's literal calls, even if the last one kills the worker.

Each launch is written to a file before it runs, with its tensors' contents. A step's record is self-contained: it
begins with the state of its buffers. While an object or a graph of an earlier step exists, the record goes on: later
steps may use the objects that it made.
"""

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec
import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.literal_buffers import changed_buffer, literal_buffer
from attnfuzz.harness.calls.named_objects import NamedObjects
from attnfuzz.harness.memory import poison
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.kernels.interface.backend import Attended, Op, Output, WrittenCache, WrittenTensor
from attnfuzz.kernels.interface.compared import ComparedLists, ComparedResult, ComparedTensor
from attnfuzz.kernels.interface.library_call import HELD, OBJECT, OnHost
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import (
    REPLAY,
    Argument,
    Buffer,
    Call,
    CallAnswer,
    CallCase,
    Expected,
    ExpectedLists,
    ExpectedTensor,
    ExpectedWrite,
    View,
    literal_number,
    pack,
    views_of_case,
)
from attnfuzz.reference.case import Outputs
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry


class Untraceable(ValueError):
    """A call can't be serialized; the message has the argument."""


class Hollow(Untraceable):
    """Memory with a hole, which cases to run can't have; `calls` are those of a script."""

    def __init__(self, buffer: str, calls: CallCase) -> None:
        super().__init__(f"most of {buffer} has no memory")
        self.calls = calls


class TraceLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a trace: new buffers, and the call or answer that uses them, or the obstacle to it.

    `step` is the number of its record, `index` that of its step, in the case's first run or in the `related` one.
    A line that says `raised` tells that the call before it has raised an exception.
    """

    step: int
    index: int
    related: bool = False
    mode: str
    buffers: tuple[Buffer, ...] = ()
    call: Call | None = None
    answer: CallAnswer | None = None
    written: tuple[ExpectedWrite, ...] = ()
    expected: tuple[ExpectedTensor, ...] = ()
    lists: tuple[ExpectedLists, ...] = ()
    obstacle: str | None = None
    raised: bool = False


class FileTracer:
    """Writes a trace of one case to a file, flushed line by line. A script has no code of a backend's own.

    `whole`: one record has the calls of all steps, for kernels that keep something from call to call.
    """

    with_own = False

    def __init__(self, file: TextIO, memory: PlacedMemory, outputs: Outputs, *, whole: bool = False) -> None:
        self._file, self._memory, self._whole = file, memory, whole
        self._output_pattern = poison.sentinel if outputs is Outputs.POISONED else poison.stale
        self._step, self._index, self._mode = -1, -1, ""
        self._related = self._ended = False
        self._names: dict[int, str] = {}
        self._known: dict[int, bytes] = {}
        self._taken: set[str] = set()
        self._fresh: list[Buffer] = []
        self._objects, self._made = NamedObjects(), ""

    def begin_step(self, index: int, mode: str, *, related: bool = False) -> None:
        """Start a new record for a step of a case or of its related case, or go on with the last one."""
        other_run = related is not self._related
        self._index, self._mode, self._related = index, mode, related
        self._begin_record(anyway=other_run)

    def begin_again(self) -> None:
        """Start the step's record again, as its calls so far were rejected."""
        self._begin_record(anyway=False)

    def end(self) -> None:
        """Ignore everything from now on: the calls so far are those that failed."""
        self._ended = True

    def _begin_record(self, *, anyway: bool) -> None:
        if (self._objects.alive() or (self._whole and self._step >= 0)) and not anyway:
            return
        self._step += 1
        for each in (self._names, self._known, self._taken, self._fresh, self._objects):
            each.clear()

    def launch(self, op: Op, arguments: dict[str, Any], graph: str = "") -> None:
        """Write a call that is about to be launched, or captured into a graph."""
        try:
            writes = self._writes()
            call = self._call(op, dict(arguments))
        except Untraceable as obstacle:
            self._write(obstacle=f"a call of {op.name} can't be serialized: {obstacle}")
            return
        self._made = call.makes
        self._write(call=replace(call, writes=writes, graph=graph))

    def returned(self, result: Any = None, *, raised: bool = False) -> None:
        """Note the call's writes, to separate them from other writes before the next call, and the object it made."""
        if raised:
            self._write(raised=True)
        elif self._made:
            self._objects.bind(result, self._made)
        self._made = ""
        for allocation in self._memory.allocations():
            if allocation.address in self._known:
                self._known[allocation.address] = self._memory.content(allocation)

    def captured(self, graph: object, launches: Sequence[tuple[Op, dict[str, Any]]]) -> None:
        """Write calls on objects that are about to be captured into a graph.

        The replay of any other graph is written as its calls.
        """
        if any(op.library is not None and op.library.takes_object for op, _ in launches):
            name = self._objects.fresh("graph")
            self._objects.bind(graph, name)
            for op, arguments in launches:
                self.launch(op, arguments, name)

    def replayed(self, graph: object) -> bool:
        """Write the replay of a graph. Returns False for one that was not written."""
        name = self._objects.name_of(graph)
        if name is None:
            return False
        try:
            self._write(call=Call(op=REPLAY, writes=self._writes(), graph=name))
        except Untraceable as obstacle:
            self._write(obstacle=f"the replay of a graph can't be serialized: {obstacle}")
        return True

    def _call(self, op: Op, arguments: dict[str, Any]) -> Call:
        """Record the literal call, without the writes before it."""
        library, on, makes, held = op.library, "", "", frozenset[str]()
        if library is not None:
            receiver, held = arguments.pop(OBJECT, None), arguments.pop(HELD, held)
            if library.takes_object:
                on = self._objects.name_of(receiver) or ""
                if not on:
                    raise Untraceable(f"its {type(receiver).__name__} was made before the trace")
            makes = self._objects.fresh("wrapper") if library.makes else ""
        return Call(
            op=op.name,
            arguments={
                name: self._argument(name, value) if library is None else self._of_library(name, value)
                for name, value in arguments.items()
            },
            returned=tuple(sorted(op.returned)),
            on=on,
            makes=makes,
            held=tuple(sorted(held)),
            apart=op.apart,
        )

    def output(self, output: Output, geometry: Geometry) -> None:
        """Write the right answer to the calls of the step, for the requests whose rows were not written after them."""
        try:
            writes = self._writes()
            out = self._view(output.out)
            lse = None if output.lse is None else self._view(output.lse)
            results = [view for view in (out, lse) if view is not None]
            fresh = {buffer.name for buffer in self._fresh}
            if lse is not None and lse.buffer in fresh:
                # The backend computed it from what its calls returned.
                lse, results = None, [out]
            if any(view.buffer in fresh or view.dtype is not None for view in results):
                # No call has used it.
                return
            attended = [entry for entry in output.attended if not _overwritten(entry, results, writes)]
            if output.attended and not attended:
                return
            answer = CallAnswer(
                out=out,
                lse=lse,
                sinks=None if output.sinks is None else self._view(output.sinks),
                requests=tuple(self._expected(index, entry) for index, entry in enumerate(attended)),
                bmm1_scale=output.bmm1_scale,
                bmm2_scale=output.bmm2_scale,
                window_left=geometry.window_left,
                soft_cap=geometry.soft_cap,
                roundings=output.roundings,
                writes=writes,
            )
        except Untraceable:
            return
        self._write(answer=answer)

    def written(self, cache: WrittenCache) -> None:
        """Write the contents of a KV cache that are due after the calls of the step, if these got all of it."""
        # A script compares whole tensors.
        solid = [tensor for tensor in cache.tensors if not tensor.hole]
        try:
            expected = tuple(self._written(tensor, cache.tokens[tensor.first :]) for tensor in solid)
        except Untraceable:
            return
        if all(each.view.buffer in self._names.values() for each in expected):
            self._write(written=expected)

    def compared(self, result: ComparedResult) -> None:
        """Write the right contents of tensors after the calls of the step, without those that no call got."""
        try:
            # Calls alone don't lead to contents that other code changes after them.
            if self._writes():
                return
            tensors = [each for each in result.tensors if self._is_known(each.seen)]
            lists = [each for each in result.lists if self._is_known(each.seen)]
            if tensors or lists:
                self._write(expected=tuple(map(self._compared, tensors)), lists=tuple(map(self._listed, lists)))
        except Untraceable:
            return

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return (
            tensor.numel() > 0
            and self._memory.holds(tensor)
            and self._memory.allocation_of(tensor).address in self._names
        )

    def _compared(self, tensor: ComparedTensor) -> ExpectedTensor:
        bound = tensor.bound
        return ExpectedTensor(
            name=tensor.name,
            view=self._view(tensor.seen),
            right=self._truth(f"{tensor.name}_right", tensor.right),
            bound=None if bound is None else self._truth(f"{tensor.name}_bound", bound),
        )

    def _listed(self, lists: ComparedLists) -> ExpectedLists:
        lengths = torch.tensor([len(each) for each in lists.scores], dtype=torch.int64)
        names = None if lists.names is None else torch.cat([each.long() for each in lists.names])
        return ExpectedLists(
            name=lists.name,
            view=self._view(lists.seen),
            scores=self._truth(f"{lists.name}_scores", torch.cat([each.cpu() for each in lists.scores])),
            lengths=self._truth(f"{lists.name}_lengths", lengths),
            names=None if names is None else self._truth(f"{lists.name}_names", names),
        )

    def _written(self, tensor: WrittenTensor, tokens: Sequence[tuple[int, int]]) -> ExpectedWrite:
        # A pool that a copy reads, and leaves as it is, has no places.
        of_tokens = torch.tensor(tokens, dtype=torch.int64).reshape(-1, 2).T[:, : tensor.at.shape[1]]
        held = tensor.after if tensor.memory is None else tensor.memory
        return ExpectedWrite(
            name=tensor.name,
            view=self._view(held if tensor.nibbles else held.view(tensor.low.dtype)),
            places=self._truth(f"{tensor.name}_places", torch.cat((tensor.at.cpu(), of_tokens))),
            low=self._truth(f"{tensor.name}_low", tensor.low),
            high=None if tensor.high is tensor.low else self._truth(f"{tensor.name}_high", tensor.high),
            free=self._truth(f"{tensor.name}_free", tensor.free),
        )

    def _writes(self) -> tuple[Buffer, ...]:
        """Return the changes in known buffers since the last look."""
        writes = []
        for allocation in self._memory.allocations():
            known = self._known.get(allocation.address)
            content = None if known is None else self._memory.content(allocation)
            if known is not None and content is not None and known != content:
                if any(allocation.hole):
                    # The calls read it: without the change, a script would have other keys.
                    raise Untraceable(
                        f"most of {allocation.name} has no memory, and code outside of kernels changed it"
                    )
                name = self._names[allocation.address]
                writes.append(changed_buffer(name, _dtype_named(allocation.dtype), known, content))
                self._known[allocation.address] = content
        return tuple(writes)

    def _write(self, **parts: Any) -> None:
        """Write a line with these parts of a `TraceLine`, and with the buffers that are new."""
        if self._ended:
            return
        line = TraceLine(
            step=self._step,
            index=self._index,
            related=self._related,
            mode=self._mode,
            buffers=tuple(self._fresh),
            **parts,
        )
        self._fresh = []
        self._file.write(msgspec.json.encode(line).decode() + "\n")
        self._file.flush()

    def _argument(self, name: str, value: Any) -> Argument:
        if isinstance(value, torch.Tensor):
            return self._view(value)
        if isinstance(value, tuple | list) and all(isinstance(item, torch.Tensor) for item in value):
            return [self._view(item) for item in value]
        if value is None or isinstance(value, int | str | float):
            return literal_number(value) if isinstance(value, float) else value
        raise Untraceable(f"{name} is {value!r}")

    def _of_library(self, name: str, value: Any) -> Argument:
        """Record an argument of a library's function, which may be a dtype or a tensor on the host."""
        if isinstance(value, OnHost):
            return self._truth(name, value.tensor, host=True)
        if isinstance(value, torch.dtype):
            return f"torch.{_dtype_of(value).value}"
        return self._argument(name, value)

    def _view(self, tensor: torch.Tensor) -> View:
        """Return a view of a guarded tensor; a new buffer is recorded with its content."""
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        if not tensor.numel():
            return View(buffer=self._fresh_buffer("empty", _dtype(tensor), b""), shape=shape, stride=stride)
        try:
            allocation = self._memory.allocation_of(tensor)
            content = b"" if allocation.address in self._names else self._memory.content(allocation)
        except ValueError as error:
            raise Untraceable(str(error)) from error
        if allocation.address not in self._names:
            hole = tuple(at // allocation.itemsize for at in allocation.hole) if any(allocation.hole) else None
            name = self._fresh_buffer(allocation.name, _dtype_named(allocation.dtype), content, hole)
            self._names[allocation.address] = name
            self._known[allocation.address] = content
        dtype = _dtype(tensor)
        return View(
            buffer=self._names[allocation.address],
            shape=shape,
            stride=stride,
            offset=(tensor.data_ptr() - allocation.address) // tensor.itemsize,
            dtype=None if dtype == allocation.dtype else dtype,
        )

    def _expected(self, index: int, entry: Attended) -> Expected:
        return Expected(
            first_row=entry.first_row,
            query=self._placed_or_truth(f"request_{index}_query", entry.query),
            key=self._truth(f"request_{index}_key", entry.key),
            value=self._truth(f"request_{index}_value", entry.value),
            mask=None if entry.mask is None else self._truth(f"request_{index}_mask", entry.mask),
        )

    def _placed_or_truth(self, name: str, tensor: torch.Tensor) -> View:
        """View a guarded tensor, or a copy of another: a session may pass queries to its kernels in another order."""
        return self._view(tensor) if not tensor.numel() or self._memory.holds(tensor) else self._truth(name, tensor)

    def _truth(self, name: str, tensor: torch.Tensor, *, host: bool = False) -> View:
        """Record a buffer that no kernel sees, such as a request's keys, or an argument on the `host`."""
        dense = tensor.contiguous().cpu()
        content = ctypes.string_at(dense.data_ptr(), dense.nbytes)
        buffer = self._fresh_buffer(name, _dtype(tensor), content)
        if host:
            self._fresh[-1] = replace(self._fresh[-1], host=True)
        return View(buffer=buffer, shape=tuple(dense.shape), stride=tuple(dense.stride()))

    def _fresh_buffer(self, name: str, dtype: DType, content: bytes, hole: tuple[int, ...] | None = None) -> str:
        """Record a new buffer; return its name, a unique one like `name`."""
        attempts = (f"{name}_{n}" if n > 1 else name for n in range(1, len(self._taken) + 2))
        unique = next(each for each in attempts if each not in self._taken)
        self._taken.add(unique)
        if hole is not None:
            first, end = hole
            size = len(content) // dtype.itemsize + end - first
            self._fresh.append(Buffer(name=unique, dtype=dtype, size=size, bits=pack(content), hole=(first, end)))
        elif content and content == self._output_pattern(dtype.torch_dtype).content(len(content)):
            self._fresh.append(Buffer(name=unique, dtype=dtype, size=len(content) // dtype.itemsize))
        else:
            self._fresh.append(literal_buffer(unique, dtype, content))
        return unique


def assemble(path: Path, case: AnyCase, step: int | None = None, *, holes: bool = False) -> CallCase | None:
    """Read the calls of the last step in a trace, or of the first run's step at index `step`; None if there are none.

    A record that goes on after that step is cut there.

    Raises:
        Untraceable: one of them can't be serialized.
        Hollow: one of them uses memory with a hole, and there may be no `holes`, as in cases to run.

    """
    # A killed worker may leave a partial line.
    *whole, _ = path.read_text().split("\n")
    lines = [msgspec.json.decode(text, type=TraceLine) for text in whole]
    if step is not None:
        of_step = [n for n, line in enumerate(lines) if line.index == step and not line.related]
        lines = lines[: of_step[-1] + 1] if of_step else []
    if not lines:
        return None
    last = [line for line in lines if line.step == lines[-1].step]
    for line in last:
        if line.obstacle is not None:
            raise Untraceable(line.obstacle)
    # Earlier steps of a record have answers to earlier calls.
    ends = max((n for n, line in enumerate(last) if line.call is not None), default=-1)
    calls = CallCase(
        backend=case.backend,
        buffers=tuple(buffer for line in last for buffer in line.buffers),
        calls=tuple(_made(last)),
        answer=next((line.answer for line in last[ends + 1 :] if line.answer is not None), None),
        written=next((line.written for line in last[ends + 1 :] if line.written), ()),
        expected=next((line.expected for line in last[ends + 1 :] if line.expected), ()),
        lists=next((line.lists for line in last[ends + 1 :] if line.lists), ()),
        mode=last[-1].mode,
        guard=case.guard,
        outputs=case.outputs,
        dirty=case.dirty,
    )
    hollow = next((buffer.name for buffer in calls.buffers if buffer.hole is not None), None)
    if hollow is not None and not holes:
        raise Hollow(hollow, _without_unused(calls))
    return _without_unused(calls)


def _without_unused(case: CallCase) -> CallCase:
    """Drop the buffers that neither calls nor the answer have, and writes to them: they belong to earlier answers."""
    used = {view.buffer for view in views_of_case(case)}
    calls = tuple(replace(call, writes=tuple(w for w in call.writes if w.name in used)) for call in case.calls)
    return replace(case, buffers=tuple(buffer for buffer in case.buffers if buffer.name in used), calls=calls)


def _made(lines: Sequence[TraceLine]) -> Iterator[Call]:
    """Yield the calls of a record, without those that were rejected, after which the session went on."""
    calls: list[tuple[Call, bool]] = []
    for line in lines:
        if line.call is not None:
            calls.append((line.call, False))
        elif line.raised and calls:
            calls[-1] = (calls[-1][0], True)
    pending: tuple[Buffer, ...] = ()
    for index, (call, raised) in enumerate(calls):
        pending += call.writes
        if not raised or index == len(calls) - 1:
            yield replace(call, writes=pending)
            pending = ()


def _overwritten(entry: Attended, results: list[View], writes: tuple[Buffer, ...]) -> bool:
    """Return whether one of the writes reaches rows of a request."""
    rows = (entry.first_row, entry.first_row + entry.query.shape[0])
    for view in results:
        first, end = (view.offset + row * view.stride[0] for row in rows)
        if any(w.name == view.buffer and w.offset < end and first < w.offset + w.size for w in writes):
            return True
    return False


def _dtype(tensor: torch.Tensor) -> DType:
    return _dtype_of(tensor.dtype)


def _dtype_of(dtype: torch.dtype) -> DType:
    return _dtype_named(str(dtype).removeprefix("torch."))


def _dtype_named(name: str) -> DType:
    try:
        return DType(name)
    except ValueError:
        raise Untraceable(f"a tensor of torch.{name}") from None
