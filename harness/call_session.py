"""A case made of literal calls, run like any other: its buffers in guarded memory, its calls through the launcher."""

from typing import Any

import torch

from attnfuzz.kernels.backend import Attended, Backend, Bench, Fill, Output
from attnfuzz.reference.calls import Argument, Buffer, CallCase, View, content_of
from attnfuzz.reference.geometry import Geometry


class CallSession:
    """Buffers and calls of one CallCase. What only the answer refers to is not guarded, since no kernel sees it."""

    def __init__(self, case: CallCase, backend: Backend, bench: Bench) -> None:
        self._case, self._ops, self._bench = case, backend.ops, bench
        self._buffers = {buffer.name: self._place(buffer) for buffer in case.buffers}

    def forward(self, index: int) -> Output | None:
        """Launch every call; what they gave, if the case has the right answer."""
        assert index == 0
        for call in self._case.calls:
            for write in call.writes:
                content = content_of(write)
                assert content is not None
                self._buffers[write.name].copy_(content)
            arguments = {name: self._argument(value) for name, value in call.arguments.items()}
            self._bench.launcher.launch(self._ops[call.op], **arguments)
        answer = self._case.answer
        if answer is None:
            return None
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

    def _place(self, buffer: Buffer) -> torch.Tensor:
        dtype = buffer.dtype.torch_dtype
        content = content_of(buffer)
        if content is None:
            return self._bench.memory.tensor(buffer.name, (buffer.size,), dtype, fill=Fill.OUTPUT)
        placed = self._bench.memory.tensor(buffer.name, (buffer.size,), dtype)
        # Bit by bit: a copy in the dtype itself may quieten a signalling NaN.
        placed.view(buffer.dtype.bits).copy_(content.view(buffer.dtype.bits))
        return placed

    def _argument(self, value: Argument) -> Any:
        if isinstance(value, View):
            return self._view(value)
        if isinstance(value, list):
            return tuple(self._view(item) for item in value)
        return value

    def _view(self, view: View) -> torch.Tensor:
        buffer = self._buffers[view.buffer]
        if view.dtype is not None:
            buffer = buffer.view(view.dtype.torch_dtype)
        return buffer.as_strided(view.shape, view.stride, view.offset)


def answered_geometry(case: CallCase) -> Geometry:
    """What the judge needs to know of the layer, from the shapes of the answer; pages are the kernel's own business."""
    answer = case.answer
    if answer is None or not answer.requests:
        return Geometry(q_heads=1, kv_heads=1, head_dim_qk=1, head_dim_vo=1, page_size=1)
    first = answer.requests[0]
    dtypes = {buffer.name: buffer.dtype for buffer in case.buffers}
    return Geometry(
        q_heads=first.query.shape[1],
        kv_heads=first.key.shape[1],
        head_dim_qk=first.key.shape[2],
        head_dim_vo=first.value.shape[2],
        page_size=1,
        dtype=dtypes[answer.out.buffer],
        kv_dtype=dtypes[first.key.buffer],
        window_left=answer.window_left,
    )
