"""Literal calls as launches: of functions, and on the objects and graphs that earlier calls have made."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from attnfuzz.kernels.arguments.argument_forms import returning
from attnfuzz.kernels.arguments.lives import apart
from attnfuzz.kernels.interface.backend import Bench, Graph, Op
from attnfuzz.kernels.interface.library_call import HELD, OBJECT, OnHost
from attnfuzz.reference.calls import NUMBERS, REPLAY, Argument, Call, CallCase, View, viewed
from attnfuzz.reference.dtypes import DType

_DTYPES = {f"torch.{dtype.value}": dtype.torch_dtype for dtype in DType}


def argument(value: Argument, buffers: Mapping[str, torch.Tensor]) -> Any:
    """Return an argument whose tensors are in these buffers."""
    if isinstance(value, View):
        return viewed(buffers[value.buffer], value)
    if isinstance(value, list):
        return tuple(viewed(buffers[member.buffer], member) for member in value)
    return NUMBERS.get(value, value) if isinstance(value, str) else value


class Calls:
    """Makes the calls of a case in order, with its `ops` by name and its `buffers`."""

    def __init__(
        self, case: CallCase, ops: Mapping[str, Op], bench: Bench, buffers: Mapping[str, torch.Tensor]
    ) -> None:
        self._ops, self._launcher, self._buffers = ops, bench.launcher, buffers
        self._on_host = {buffer.name for buffer in case.buffers if buffer.host}
        self._objects: dict[str, Any] = {}
        self._graphs: dict[str, Graph] = {}

    def make(self, call: Call) -> None:
        """Launch a call, or replay a graph."""
        if call.op == REPLAY:
            self._graphs[call.graph].replay()
            return
        op = self._ops[call.op]
        arguments = {name: argument(value, self._buffers) for name, value in call.arguments.items()}
        if op.library is not None:
            arguments = {name: self._of_library(call.arguments[name], value) for name, value in arguments.items()}
            arguments[HELD] = frozenset(call.held)
            if call.on:
                arguments[OBJECT] = self._objects[call.on]
        if call.apart:
            op = apart(op)
        if call.returned:
            op = returning(op, frozenset(call.returned))
        result = self._launcher.launch(op, **arguments)
        if call.makes:
            self._objects[call.makes] = result

    @contextmanager
    def captured(self, name: str) -> Iterator[None]:
        """Capture the calls of the block into a graph of this name."""
        with self._launcher.capture() as graph:
            yield
        self._graphs[name] = graph

    def _of_library(self, literal: Argument, value: Any) -> Any:
        """Pass an argument of a library's function, which may be a dtype or a tensor on the host."""
        if isinstance(literal, View) and literal.buffer in self._on_host:
            return OnHost(value)
        return _DTYPES.get(value, value) if isinstance(value, str) else value
