"""A late GPU, which begins a step only when the host has queued all of it, for Pace.LATE."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attnfuzz.kernels.cuda import guards

_PATIENCE = 0.1
"""Seconds after which the GPU goes on by itself, because a library may wait for it without torch noticing."""

_METHODS = ("cpu", "item", "tolist", "numpy", "nonzero", "equal", "__bool__", "__int__", "__float__", "to", "copy_")
_WAITING = (*((torch.Tensor, name) for name in _METHODS), (torch, "nonzero"), (torch, "equal"))
"""Calls of torch that wait for the GPU; `to` and `copy_` only if they copy to the host."""


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


def _opening(gate: StreamGate, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` with the gate open while it may wait for the GPU."""

    def opened(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("non_blocking") or not _waits(method, args):
            return call(*args, **kwargs)
        gate.open()
        try:
            return call(*args, **kwargs)
        finally:
            gate.close()

    return opened


@contextmanager
def _open_to_waits(gate: StreamGate) -> Iterator[None]:
    """Replace the calls of torch that wait for the GPU.

    A TorchFunctionMode would intercept every call of torch, which takes as long as a small one.
    """
    before = [(owner, name, vars(owner).get(name)) for owner, name in _WAITING]
    for owner, name in _WAITING:
        setattr(owner, name, _opening(gate, name, getattr(owner, name)))
    try:
        yield
    finally:
        for owner, name, own in before:
            # Most methods of torch.Tensor are those of its base class.
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)


def _waits(method: str, args: tuple[Any, ...]) -> bool:
    """Return whether a call may wait. Opening the gate needlessly does no harm."""
    tensor = args[0] if args else None
    if not isinstance(tensor, torch.Tensor):
        return False
    if method == "copy_":
        return tensor.is_cpu and any(source.is_cuda for source in args[1:2])
    return tensor.is_cuda and (method != "to" or _to_the_host(args[1:]))


def _to_the_host(args: tuple[Any, ...]) -> bool:
    return any(str(arg) == "cpu" for arg in args if isinstance(arg, str | torch.device)) or not args


@contextmanager
def late(gate: StreamGate) -> Iterator[StreamGate]:
    """Hold the GPU while the block queues work, except where torch waits for it."""
    gate.close()
    try:
        with _open_to_waits(gate):
            yield gate
    finally:
        gate.open()
