"""Placing the arguments that a user's function prepares in guarded memory."""

from collections.abc import Mapping
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Memory


def placed(arguments: Mapping[str, Any], memory: Memory) -> dict[str, Any]:
    """Return the arguments with every tensor in guarded memory, with its strides. Those already there stay.

    A contiguous one may get the strides of a form that the case asks for.
    """
    return {
        name: memory.copy(name, value, stride=None if value.is_contiguous() else value.stride())
        if isinstance(value, torch.Tensor) and not (value.numel() and memory.holds(value))
        else value
        for name, value in arguments.items()
    }
