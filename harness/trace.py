"""Tracing: from a step to the literal calls that a backend made of it, also when the last of them kills the worker.

Each launch is written to a file before it runs, with what its tensors hold. A step's record stands by itself: it begins
with the state in which the step found its buffers.
"""

import ctypes
from pathlib import Path
from typing import Any, TextIO

import msgspec
import torch

from attnfuzz.harness.memory import poison
from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.kernels.backend import Attended, Op, Output
from attnfuzz.reference.calls import Answer, Argument, Buffer, Call, CallCase, Expected, View, pack
from attnfuzz.reference.case import Case, Outputs
from attnfuzz.reference.dtypes import DType

READABLE = 256
"""Integer buffers of up to this many elements are written as numbers, others as bits."""


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of a trace: buffers that appear, and the call or the answer that uses them."""

    step: int
    mode: str
    buffers: tuple[Buffer, ...] = ()
    call: Call | None = None
    answer: Answer | None = None


class FileTracer:
    """Writes a trace of one case to a file, flushed line by line."""

    def __init__(self, file: TextIO, memory: GuardedMemory, outputs: Outputs) -> None:
        self._file, self._memory = file, memory
        self._output_pattern = poison.sentinel if outputs is Outputs.POISONED else poison.stale
        self._step, self._mode = -1, ""
        self._names: dict[int, str] = {}
        self._known: dict[int, bytes] = {}
        self._fresh: list[Buffer] = []

    def begin_step(self, index: int, mode: str) -> None:
        """Start a record of its own for a step."""
        self._step, self._mode = index, mode
        self._names.clear()
        self._known.clear()

    def launch(self, op: Op, arguments: dict[str, Any]) -> None:
        """Write a call that is about to be launched."""
        writes: list[Buffer] = []
        literal = {name: self._argument(value, writes) for name, value in arguments.items()}
        self._write(call=Call(op=op.name, arguments=literal, writes=tuple(writes)))

    def returned(self) -> None:
        """Learn what the call has written, to tell it from what a planner writes before the next."""
        for allocation in self._memory.allocations():
            if allocation.address in self._known:
                self._known[allocation.address] = _content(allocation)

    def output(self, output: Output, window_left: int) -> None:
        """Write the right answer to the calls of the step."""
        self._write(
            answer=Answer(
                out=self._view(output.out, []),
                lse=None if output.lse is None else self._view(output.lse, []),
                sinks=None if output.sinks is None else self._view(output.sinks, []),
                requests=tuple(self._expected(index, entry) for index, entry in enumerate(output.attended)),
                bmm1_scale=output.bmm1_scale,
                bmm2_scale=output.bmm2_scale,
                window_left=window_left,
                roundings=output.roundings,
            )
        )

    def _write(self, call: Call | None = None, answer: Answer | None = None) -> None:
        line = Line(step=self._step, mode=self._mode, buffers=tuple(self._fresh), call=call, answer=answer)
        self._fresh = []
        self._file.write(msgspec.json.encode(line).decode() + "\n")
        self._file.flush()

    def _argument(self, value: Any, writes: list[Buffer]) -> Argument:
        if isinstance(value, torch.Tensor):
            return self._view(value, writes)
        if isinstance(value, tuple | list):
            return [self._view(item, writes) for item in value]
        assert value is None or isinstance(value, int | float | str | bool)
        return value

    def _view(self, tensor: torch.Tensor, writes: list[Buffer]) -> View:
        shape, stride = tuple(tensor.shape), tuple(tensor.stride())
        if not tensor.numel():
            return self._empty(tensor)
        allocation = self._memory.allocation_of(tensor)
        content = _content(allocation)
        name = self._names.get(allocation.address)
        if name is None:
            name = self._names[allocation.address] = self._unique(allocation.name)
            self._fresh.append(self._buffer(name, allocation, content))
        elif self._known[allocation.address] != content:
            writes.append(self._buffer(name, allocation, content))
        self._known[allocation.address] = content
        offset = (tensor.data_ptr() - allocation.address) // tensor.itemsize
        dtype = DType.of(tensor.dtype)
        return View(
            buffer=name, shape=shape, stride=stride, offset=offset, dtype=None if dtype == allocation.dtype else dtype
        )

    def _empty(self, tensor: torch.Tensor) -> View:
        name = self._unique("empty")
        self._names[-len(self._names) - 1] = name
        self._fresh.append(Buffer(name=name, dtype=DType.of(tensor.dtype), size=0, values=()))
        return View(buffer=name, shape=tuple(tensor.shape), stride=tuple(tensor.stride()))

    def _unique(self, name: str) -> str:
        taken = set(self._names.values())
        return next(each for n in range(1, len(taken) + 2) if (each := f"{name}_{n}" if n > 1 else name) not in taken)

    def _buffer(self, name: str, allocation: Allocation, content: bytes) -> Buffer:
        dtype = DType(allocation.dtype)
        size = allocation.nbytes // allocation.itemsize
        if content == self._output_pattern(dtype.torch_dtype).content(len(content)):
            return Buffer(name=name, dtype=dtype, size=size)
        return literal_buffer(name, dtype, content)

    def _expected(self, index: int, entry: Attended) -> Expected:
        return Expected(
            first_row=entry.first_row,
            query=self._view(entry.query, []),
            key=self._truth(f"request_{index}_key", entry.key),
            value=self._truth(f"request_{index}_value", entry.value),
        )

    def _truth(self, name: str, tensor: torch.Tensor) -> View:
        """A buffer that no kernel sees: what a request should have attended to."""
        dense = tensor.contiguous()
        content = bytes(dense.view(torch.uint8).flatten().tolist())
        self._fresh.append(literal_buffer(name, DType.of(tensor.dtype), content))
        return View(buffer=name, shape=tuple(dense.shape), stride=tuple(dense.stride()))


def literal_buffer(name: str, dtype: DType, content: bytes) -> Buffer:
    """A buffer with this content: as numbers where a person would read them, else as bits."""
    size = len(content) // dtype.itemsize
    if dtype in (DType.INT32, DType.INT64) and size <= READABLE:
        values = torch.frombuffer(bytearray(content), dtype=dtype.torch_dtype).tolist() if content else []
        return Buffer(name=name, dtype=dtype, size=size, values=tuple(values))
    return Buffer(name=name, dtype=dtype, size=size, bits=pack(content))


def assemble(path: Path, case: Case, backend: str) -> CallCase | None:
    """The calls of the last step in a trace, None if nothing was launched."""
    lines = [msgspec.json.decode(text, type=Line) for text in path.read_text().splitlines()]
    if not lines:
        return None
    last = [line for line in lines if line.step == lines[-1].step]
    return CallCase(
        backend=backend,
        buffers=tuple(buffer for line in last for buffer in line.buffers),
        calls=tuple(line.call for line in last if line.call is not None),
        answer=next((line.answer for line in last if line.answer is not None), None),
        mode=last[0].mode,
        guard=case.guard,
        outputs=case.outputs,
    )




def _content(allocation: Allocation) -> bytes:
    return ctypes.string_at(allocation.address, allocation.nbytes)
