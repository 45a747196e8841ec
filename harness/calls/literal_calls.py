"""Literal calls as tensors in guarded memory, launched like any other."""

import contextlib
import math
from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.made_calls import Calls, argument
from attnfuzz.harness.memory.allocation import check_strides, extent
from attnfuzz.kernels.interface.backend import (
    Attended,
    Backend,
    Bench,
    Fill,
    Output,
    Result,
    WrittenCache,
    WrittenTensor,
)
from attnfuzz.kernels.interface.compared import ComparedLists, ComparedResult, ComparedTensor
from attnfuzz.kernels.planning.lengths import running_sum
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import (
    REPLAY,
    Buffer,
    CallAnswer,
    CallCase,
    ExpectedLists,
    ExpectedTensor,
    ExpectedWrite,
    View,
    content_of,
    named_views,
    viewed,
)
from attnfuzz.reference.case import Case
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.nvfp4 import in_rows


def literal_arguments(case: CallCase, index: int) -> dict[str, Any]:
    """Return the arguments of call `index`, which share memory where views share a buffer.

    Tensors hold their buffers' content before the first call, and later writes of code outside of kernels; a buffer
    without content, for a kernel to fill, holds zeros, and one with a hole is on the meta device. Results of earlier
    calls are absent.

    Raises:
        ValueError: for content that is damaged or still in another file.

    """
    call = case.calls[index]
    used = {view.buffer for _, view in named_views(call.arguments)}
    buffers = {buffer.name: _content(buffer) for buffer in case.buffers if buffer.name in used}
    for each in case.calls[: index + 1]:
        for write in each.writes:
            if write.name in used:
                buffers[write.name][write.offset :][: write.size] = _content(write)
    return {name: argument(value, buffers) for name, value in call.arguments.items()}


def _content(buffer: Buffer) -> torch.Tensor:
    if buffer.hole is not None:
        return torch.empty(buffer.size, dtype=buffer.dtype.torch_dtype, device="meta")
    content = content_of(buffer)
    return torch.zeros(buffer.size, dtype=buffer.dtype.torch_dtype) if content is None else content


def flat(view: View, ndim: int) -> View:
    """Merge a view's leading axes, leaving `ndim`. Raises ValueError if strides don't allow it."""
    while len(view.shape) > ndim:
        rows, inner = view.shape[:2]
        if rows > 1 and inner > 1 and view.stride[0] != inner * view.stride[1]:
            raise ValueError(f"rows of {list(view.shape)} at strides {list(view.stride)} are not evenly apart")
        step = view.stride[1] if inner > 1 else view.stride[0]
        view = replace(view, shape=(rows * inner, *view.shape[2:]), stride=(step, *view.stride[2:]))
    return view


def rows(view: View, first: int, count: int) -> View:
    """Select `count` entries of the first axis, from `first` on."""
    offset = view.offset + first * view.stride[0] if count else view.offset
    return replace(view, shape=(count, *view.shape[1:]), offset=offset)


class CallSession:
    """Buffers and calls of one CallCase. Buffers for the answer alone are not guarded, since no kernel sees them."""

    def __init__(self, case: CallCase, backend: Backend, bench: Bench) -> None:
        self._case, self._ops, self._bench = case, backend.ops, bench
        views = _views_of_calls(case)
        self._buffers = {buffer.name: self._place(buffer, views.get(buffer.name, [])) for buffer in case.buffers}

    def forward(self, index: int) -> Result | None:
        """Launch every call; return the output, the cache or the tensors of which the case has the right contents."""
        assert index == 0
        before = [self._contents(each.view).clone() for each in self._case.written]
        # Kept while the device may be at work.
        self._calls = calls = Calls(self._case, self._ops, self._bench, self._buffers)
        for graph, some in groupby(self._case.calls, key=lambda call: "" if call.op == REPLAY else call.graph):
            with calls.captured(graph) if graph else contextlib.nullcontext():
                for call in some:
                    self._write(call.writes)
                    calls.make(call)
        if self._case.written:
            owners = [self._view(each.places)[2:].T.tolist() for each in self._case.written]
            firsts = running_sum(map(len, owners))[:-1]
            tensors = map(self._written, self._case.written, before, firsts)
            tokens = tuple((request, token) for each in owners for request, token in each)
            return WrittenCache(tuple(tensors), tokens, self._writer())
        if self._case.expected or self._case.lists:
            return ComparedResult(
                tuple(map(self._compared, self._case.expected)), tuple(map(self._listed, self._case.lists))
            )
        answer = self._case.answer
        if answer is None:
            return None
        self._write(answer.writes)
        return _output(answer, self._view)

    def _writer(self) -> str:
        """Return the op of the last call that may write to a cache."""
        caches = {each.view.buffer for each in self._case.written}
        writers = [
            call.op
            for call in self._case.calls
            for name, view in named_views(call.arguments)
            if call.op in self._ops and name.partition("[")[0] in self._ops[call.op].writes and view.buffer in caches
        ]
        return writers[-1] if writers else ""

    def _contents(self, view: View) -> torch.Tensor:
        """Return the bits of a cache, with swizzled scales in rows."""
        bits = _bits(self._view(view))
        return in_rows(bits) if bits.ndim > 4 else bits

    def _written(self, expected: ExpectedWrite, before: torch.Tensor, first: int) -> WrittenTensor:
        device = before.device
        low = self._view(expected.low).to(device)
        return WrittenTensor(
            name=expected.name,
            before=before,
            after=self._contents(expected.view),
            nibbles=self._view(expected.view).dtype == torch.uint8,
            at=self._view(expected.places)[:2].to(device),
            low=low,
            high=low if expected.high is None else self._view(expected.high).to(device),
            free=self._view(expected.free).to(device),
            first=first,
        )

    def _compared(self, expected: ExpectedTensor) -> ComparedTensor:
        bound = None if expected.bound is None else self._view(expected.bound)
        return ComparedTensor(expected.name, self._view(expected.view), self._view(expected.right), bound)

    def _listed(self, expected: ExpectedLists) -> ComparedLists:
        lengths = self._view(expected.lengths).tolist()
        names = None if expected.names is None else self._view(expected.names).split(lengths)
        return ComparedLists(
            expected.name, self._view(expected.view), self._view(expected.scores).split(lengths), names
        )

    def _place(self, buffer: Buffer, views: list[View]) -> torch.Tensor:
        """Place a buffer in the shape in which calls see it, so that a fault can be located; return it flat."""
        content = content_of(buffer)
        if content is not None and (buffer.host or not views):
            return content
        shape, stride = _form(buffer, views)
        fill = Fill.OUTPUT if content is None else Fill.POISON
        placed = self._bench.memory.tensor(buffer.name, shape, buffer.dtype.torch_dtype, stride=stride, fill=fill)
        if content is not None:
            _copy_bits(placed, content.as_strided(shape, stride), buffer)
        return placed.as_strided((buffer.size,), (1,))

    def _write(self, writes: tuple[Buffer, ...]) -> None:
        for write in writes:
            content = content_of(write)
            assert content is not None
            _copy_bits(self._buffers[write.name][write.offset :][: write.size], content, write)

    def _view(self, view: View) -> torch.Tensor:
        return viewed(self._buffers[view.buffer], view)


def answer_of(case: CallCase) -> Output:
    """Return the output and its right answer before any call: `out` and `lse` hold their buffers' first contents."""
    assert case.answer is not None
    placed = {buffer.name: buffer for buffer in case.buffers}
    buffers: dict[str, torch.Tensor] = {}

    def content(view: View) -> torch.Tensor:
        if view.buffer not in buffers:
            buffers[view.buffer] = _content(placed[view.buffer])
            for write in case.writes:
                if write.name == view.buffer:
                    buffers[view.buffer][write.offset :][: write.size] = _content(write)
        return viewed(buffers[view.buffer], view)

    return _output(case.answer, content)


def _output(answer: CallAnswer, view: Callable[[View], torch.Tensor]) -> Output:
    return Output(
        out=view(answer.out),
        lse=None if answer.lse is None else view(answer.lse),
        sinks=None if answer.sinks is None else view(answer.sinks),
        attended=tuple(
            Attended(
                first_row=expected.first_row,
                query=view(expected.query),
                key=view(expected.key),
                value=view(expected.value),
                mask=None if expected.mask is None else view(expected.mask).cpu(),
            )
            for expected in answer.requests
        ),
        bmm1_scale=answer.bmm1_scale,
        bmm2_scale=answer.bmm2_scale,
        roundings=answer.roundings,
    )


def geometry_of(case: AnyCase) -> Geometry:
    """Return the layer's geometry for the judge."""
    if isinstance(case, CallCase):
        return answered_geometry(case)
    assert isinstance(case, Case)
    return case.geometry


def answered_geometry(case: CallCase) -> Geometry:
    """Derive the layer's geometry for the judge from the shapes of the answer, ignoring pages."""
    answer = case.answer
    assert answer is not None
    dtypes = {buffer.name: buffer.dtype for buffer in case.buffers}
    _, q_heads, dim = answer.out.shape
    # A batch of padding alone attends to nothing.
    key = (
        answer.requests[0].key
        if answer.requests
        else View(buffer=answer.out.buffer, shape=(0, q_heads, dim), stride=())
    )
    return Geometry(
        q_heads=q_heads,
        kv_heads=key.shape[1],
        head_dim_qk=key.shape[2],
        head_dim_vo=dim,
        page_size=1,
        dtype=answer.out.dtype or dtypes[answer.out.buffer],
        kv_dtype=key.dtype or dtypes[key.buffer],
        window_left=answer.window_left,
        sinks=answer.sinks is not None,
        soft_cap=answer.soft_cap,
    )


def _views_of_calls(case: CallCase) -> dict[str, list[View]]:
    """Group the calls' views by buffer."""
    found: dict[str, list[View]] = {}
    for call in case.calls:
        for _, view in named_views(call.arguments):
            found.setdefault(view.buffer, []).append(view)
    return found


def _form(buffer: Buffer, views: list[View]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Choose shape and strides of a view that spans a whole buffer, with gaps only where no view reaches; else flat."""
    for view in views:
        alone = all((each.shape, each.stride) == (view.shape, view.stride) for each in views)
        if view.offset or view.dtype is not None or extent(view.shape, view.stride) != buffer.size:
            continue
        if not alone and math.prod(view.shape) != buffer.size:
            continue
        with contextlib.suppress(ValueError):
            check_strides(buffer.name, view.shape, view.stride)
            return view.shape, view.stride
    return (buffer.size,), (1,)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(DType.of(tensor.dtype).bits)


def _copy_bits(target: torch.Tensor, content: torch.Tensor, buffer: Buffer) -> None:
    """Copy as bits: a copy in the dtype itself may quiet a signaling NaN."""
    target.view(buffer.dtype.bits).copy_(content.view(buffer.dtype.bits))
