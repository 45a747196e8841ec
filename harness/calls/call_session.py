"""A case made of literal calls, run like any other: its buffers in guarded memory, its calls through the launcher."""

import contextlib
import math
from typing import Any

import torch

from attnfuzz.harness.memory import layout
from attnfuzz.kernels.backend import Attended, Backend, Bench, Fill, Output
from attnfuzz.reference.calls import Argument, Buffer, CallCase, View, content_of, named_views, viewed
from attnfuzz.reference.geometry import Geometry


class CallSession:
    """Buffers and calls of one CallCase. What only the answer refers to is not guarded, since no kernel sees it."""

    def __init__(self, case: CallCase, backend: Backend, bench: Bench) -> None:
        self._case, self._ops, self._bench = case, backend.ops, bench
        views = _views_of_calls(case)
        self._buffers = {buffer.name: self._place(buffer, views.get(buffer.name, [])) for buffer in case.buffers}

    def forward(self, index: int) -> Output | None:
        """Launch every call; what they gave, if the case has the right answer."""
        assert index == 0
        for call in self._case.calls:
            self._write(call.writes)
            arguments = {name: self._argument(value) for name, value in call.arguments.items()}
            self._bench.launcher.launch(self._ops[call.op], **arguments)
        answer = self._case.answer
        if answer is None:
            return None
        self._write(answer.writes)
        return Output(
            out=self._view(answer.out),
            lse=None if answer.lse is None else self._view(answer.lse),
            sinks=None if answer.sinks is None else self._view(answer.sinks),
            attended=tuple(
                Attended(
                    first_row=expected.first_row,
                    query=self._view(expected.query),
                    key=self._view(expected.key),
                    value=self._view(expected.value),
                )
                for expected in answer.requests
            ),
            bmm1_scale=answer.bmm1_scale,
            bmm2_scale=answer.bmm2_scale,
            roundings=answer.roundings,
        )

    def _place(self, buffer: Buffer, views: list[View]) -> torch.Tensor:
        """The elements of a buffer, in memory of the shape in which calls see them, so that a fault can be located."""
        content = content_of(buffer)
        if content is not None and not views:
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

    def _argument(self, value: Argument) -> Any:
        if isinstance(value, View):
            return self._view(value)
        if isinstance(value, list):
            return tuple(self._view(item) for item in value)
        return value

    def _view(self, view: View) -> torch.Tensor:
        return viewed(self._buffers[view.buffer], view)


def answered_geometry(case: CallCase) -> Geometry:
    """What the judge needs to know of the layer, from the shapes of the answer; pages are the kernel's own business."""
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
    """The views of each buffer that calls have."""
    found: dict[str, list[View]] = {}
    for call in case.calls:
        for _, view in named_views(call.arguments):
            found.setdefault(view.buffer, []).append(view)
    return found


def _form(buffer: Buffer, views: list[View]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a view that spans all of a buffer, with gaps only where no view reaches; else flat."""
    for view in views:
        alone = all((each.shape, each.stride) == (view.shape, view.stride) for each in views)
        if view.offset or view.dtype is not None or layout.extent(view.shape, view.stride) != buffer.size:
            continue
        if not alone and math.prod(view.shape) != buffer.size:
            continue
        with contextlib.suppress(ValueError):
            layout.check_strides(buffer.name, view.shape, view.stride)
            return view.shape, view.stride
    return (buffer.size,), (1,)


def _copy_bits(target: torch.Tensor, content: torch.Tensor, buffer: Buffer) -> None:
    """Copy bit by bit: a copy in the dtype itself may quieten a signalling NaN."""
    target.view(buffer.dtype.bits).copy_(content.view(buffer.dtype.bits))
