"""Factors are finite, and a window is a number of keys."""

import math
from collections.abc import Iterator

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.entry_point import Breach

_SCALES = "FlashInfer docstrings: fused scale for bmm1 and bmm2 input"
_WINDOW = "FlashInfer docstring of window_left: -1 is the full length of the sequence"


def breaches(call: Attention) -> Iterator[Breach]:
    """Factors that make every result NaN, and windows below -1."""
    for name in ("bmm1_scale", "bmm2_scale"):
        scale = _number(call.arguments.get(name))
        if not math.isfinite(scale):
            yield Breach((name,), f"{name} is {scale}: no row is a number", _SCALES)
    if call.window_left < -1:
        text = f"window_left is {call.window_left}: neither no window (-1) nor a number of keys"
        yield Breach(("window_left",), text, _WINDOW)


def _number(value: object) -> float:
    """A scale as a number, 1 for what has no content to judge."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
        return float(value.item())
    return float(value) if isinstance(value, int | float) else 1.0
