"""A late GPU, which begins a step only when the host has queued all of it, for Pace.LATE."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attnfuzz.kernels.gpu import guards

_PATIENCE = 0.1
"""Seconds after which the GPU goes on by itself, because a library may wait for it without torch noticing."""

_WAITING = frozenset({"cpu", "item", "tolist", "numpy", "nonzero", "equal", "__bool__", "__int__", "__float__"})
"""Methods of tensors that wait for the GPU, besides `to` and `copy_`."""


class StreamGate:
    """A `Gate` of torch's current stream: `close` queues a waiting kernel, `open` releases all of them."""

    def __init__(self) -> None:
        self._opened = torch.zeros(1, dtype=torch.int32, pin_memory=True).numpy()
        self._ticket = 0

    def close(self) -> None:
        """Hold work queued from now on. Does nothing during a graph's capture."""
        if not torch.cuda.is_current_stream_capturing():
            self._ticket += 1
            guards.hold(self._opened.ctypes.data, self._ticket, _PATIENCE)

    def open(self) -> None:
        """Release the held work."""
        self._opened[0] = self._ticket


class _OpenToWaits(TorchFunctionMode):
    """Opens the gate during tensor methods that wait for the GPU."""

    def __init__(self, gate: StreamGate) -> None:
        super().__init__()
        self._gate = gate

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("non_blocking") or not _waits(getattr(func, "__name__", ""), args):
            return func(*args, **kwargs)
        self._gate.open()
        try:
            return func(*args, **kwargs)
        finally:
            self._gate.close()


def _waits(method: str, args: tuple[Any, ...]) -> bool:
    """Return whether a call may wait. Opening the gate needlessly does no harm."""
    tensor = args[0] if args else None
    if not isinstance(tensor, torch.Tensor):
        return False
    if method == "copy_":
        return tensor.is_cpu and args[1].is_cuda
    return tensor.is_cuda and (method in _WAITING or (method == "to" and _to_the_host(args[1:])))


def _to_the_host(args: tuple[Any, ...]) -> bool:
    return any(str(arg) == "cpu" for arg in args if isinstance(arg, str | torch.device)) or not args


@contextmanager
def late(gate: StreamGate) -> Iterator[StreamGate]:
    """Hold the GPU while the block queues work, except where torch waits for it."""
    gate.close()
    try:
        with _OpenToWaits(gate):
            yield gate
    finally:
        gate.open()
