"""What buffers hold, as Python source: numbers where a person would read them, else as short as it can be."""

import base64
import ctypes
import math
import zlib

import torch

from attnfuzz.harness.export.literals import quoted
from attnfuzz.reference.calls import Buffer, content_of
from attnfuzz.reference.case import Outputs
from attnfuzz.reference.dtypes import DType

MOST_RUNS = 6
"""Content of up to so many runs of equal elements is written as runs."""

MOST_NUMBERS = 256
"""Up to so many integers are written as numbers."""


class ScriptContents:
    """The contents of one script. `packed` has the bits of those that are too long for a line, by name, as text.

    Expressions call what a script defines: normal(size, seed), filled((count, value), ...) and packed(name).
    """

    def __init__(self, outputs: Outputs) -> None:
        self._outputs = outputs
        self.packed: dict[str, str] = {}

    def source(self, buffer: Buffer, key: str) -> str:
        """The content of a buffer, or of a write to one, as an expression; `key` names it if it is packed."""
        dtype = buffer.dtype.torch_dtype
        if buffer.drawn is not None:
            drawn = buffer.drawn
            scale = "" if (drawn.mean, drawn.std) == (0.0, 1.0) else f", mean={drawn.mean}, std={drawn.std}"
            return f"normal({buffer.size}, seed={drawn.seed}{scale})"
        content = content_of(buffer)
        if content is None:
            return self._unwritten(buffer)
        if not buffer.size:
            return "[]"
        runs = _runs(content, buffer.dtype)
        if not dtype.is_floating_point and content.numel() <= MOST_NUMBERS and content.numel() <= 8 * len(runs):
            return repr([int(value) for value in content.tolist()])
        if len(runs) <= MOST_RUNS:
            return f"filled({', '.join(f'({count}, {_number(value)})' for count, value in runs)})"
        self.packed[key] = _text_of(content)
        return f"packed({quoted(key)})"

    def _unwritten(self, buffer: Buffer) -> str:
        """What an output holds before it is written: NaN, or what an earlier call could have left."""
        if not buffer.dtype.torch_dtype.is_floating_point:
            return f"filled(({buffer.size}, 1))"
        if self._outputs is Outputs.POISONED:
            return f"filled(({buffer.size}, nan))"
        return f"normal({buffer.size}, seed=0)"


def _runs(content: torch.Tensor, dtype: DType) -> list[tuple[int, float]]:
    """How often which element comes one after another."""
    values, counts = torch.unique_consecutive(content.view(dtype.bits), return_counts=True)
    numbers = values.view(dtype.torch_dtype)
    if dtype.torch_dtype.is_floating_point:
        numbers = numbers.double()
    # Bits that differ make runs of their own, so that no two zeros or NaNs are taken for one another.
    return list(zip(counts.tolist(), numbers.tolist(), strict=True))


def _number(value: float) -> str:
    return "nan" if math.isnan(value) else repr(value)


def _text_of(content: torch.Tensor) -> str:
    data = ctypes.string_at(content.data_ptr(), content.nbytes)
    return base64.b64encode(zlib.compress(data, 9)).decode()
