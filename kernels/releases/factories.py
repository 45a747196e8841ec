"""Tensors that a release creates: from guarded memory, so that kernels that leave them fault."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from attnfuzz.kernels.interface.backend import Bench, Fill
from attnfuzz.kernels.releases import recording
from attnfuzz.kernels.releases.placement import WITH_POISON

_ZEROS: Final = {torch.zeros, torch.zeros_like, torch.Tensor.new_zeros}
_EMPTY: Final = {torch.empty, torch.empty_like, torch.Tensor.new_empty}
_FILLED: Final = {torch.full, torch.full_like, torch.Tensor.new_full, torch.ones, torch.ones_like, torch.arange}


class GuardedFactories(TorchFunctionMode):
    """While active, makes torch's factories take memory from `bench`, including tensors requested on a GPU.

    The result of torch.empty holds poison: it must be written before it is read. A tensor is named after the line that
    creates it.
    """

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self._bench = bench

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Create a tensor in guarded memory if `func` is a factory; otherwise call it."""
        arguments = self._on_device(dict(kwargs or {}))
        if recording.paused():
            return func(*args, **arguments)
        if func in _ZEROS or func in _EMPTY:
            return self._made(func, args, arguments)
        made = func(*args, **arguments)
        if func in _FILLED and made.device.type == self._bench.device.type and _placeable(made):
            return self._copied(made)
        return made

    def _on_device(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Adapt arguments to the bench's device: on the CPU, nothing is pinned or lies on a GPU."""
        if self._bench.device.type == "cpu":
            if arguments.get("pin_memory"):
                del arguments["pin_memory"]
            device = arguments.get("device")
            if device is not None and torch.device(device).type == "cuda":
                arguments["device"] = self._bench.device
        return arguments

    def _made(self, func: Callable[..., Any], args: tuple[Any, ...], arguments: dict[str, Any]) -> torch.Tensor:
        # On the meta device a tensor has a form and no memory, and nothing can be pinned.
        form: torch.Tensor = func(*args, **{**arguments, "device": "meta", "pin_memory": False})
        device = torch.device(arguments.get("device") or _device_of(args) or torch.get_default_device())
        if device.type != self._bench.device.type or not _placeable(form):
            unguarded: torch.Tensor = func(*args, **arguments)
            return unguarded
        fill = Fill.OUTPUT if form.dtype.is_floating_point else Fill.POISON
        with recording.outside():
            made = self._bench.memory.tensor(_name(), form.shape, form.dtype, stride=form.stride(), fill=fill)
        return made.zero_() if func in _ZEROS else made

    def _copied(self, value: torch.Tensor) -> torch.Tensor:
        with recording.outside():
            made = self._bench.memory.tensor(_name(), value.shape, value.dtype)
        return made.copy_(value)


def _placeable(form: torch.Tensor) -> bool:
    return form.dtype in WITH_POISON and form.numel() > 0


def _device_of(args: tuple[Any, ...]) -> torch.device | None:
    """Return the device of the first argument, as for zeros_like and new_zeros."""
    return next((each.device for each in args[:1] if isinstance(each, torch.Tensor)), None)


def _name() -> str:
    """Name the line that requests a tensor, such as "trtllm_mha_backend.py:112"."""
    frame = sys._getframe(1)  # noqa: SLF001 - there is no other way to the frames of callers
    # Stand-ins below a release allocate on behalf of the line that calls them.
    ours = str(Path(__file__).parent)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(ours) or "/torch/" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
