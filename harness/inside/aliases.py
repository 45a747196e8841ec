"""Tensors as a kernel gets them: other objects over the same memory.

A kernel can point a tensor object elsewhere (`out.set_`, `out.data = ...`) or change its shape in place. A server that
holds only the memory would not notice, so the harness reads results and inputs by objects that no kernel has had.
"""

from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary


class Aliases:
    """The aliases of a case's tensors. A tensor that is passed again is the same object for the kernel."""

    def __init__(self) -> None:
        self._made: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def of(self, value: Any) -> Any:
        """Return an argument with each tensor in it replaced, also in nested tuples and lists."""
        if isinstance(value, torch.Tensor):
            return self._alias(value)
        if isinstance(value, (tuple, list)):
            items = [self.of(item) for item in value]
            if any(new is not old for new, old in zip(items, value, strict=True)):
                # A named tuple takes its items one by one.
                return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    def _alias(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.layout is not torch.strided:
            # Parameters and subclasses have more than memory; no tensor of the harness's own is one.
            return tensor
        alias: torch.Tensor | None = self._made.get(tensor)
        if alias is None or _view(alias) != _view(tensor):
            alias = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
                tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
            )
            self._made[tensor] = alias
        return alias


def _view(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
