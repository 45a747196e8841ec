"""Numbers in Triton's interpreter, corrected to those of a GPU."""

from collections.abc import Callable
from typing import Any

import torch

_LARGEST = torch.finfo(torch.float8_e4m3fn).max


def as_on_a_gpu(convert: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's conversion of floating-point numbers, changed to round to the nearest as a GPU does.

    Triton's own (3.7 and 3.9, runtime/interpreter.py, `_convert_float`) truncates float32 to bfloat16 unless a rounding
    is given: after ten merges of attention states, results are 2% too small. To fp8 e4m3 it rounds without a carry, so
    that 1.998 becomes 1, and wraps large numbers around; a GPU saturates (PTX, cvt.rn.satfinite.e4m3x2.f32).
    """

    def converted(numbers: Any, source: Any, target: Any, rounding: Any) -> Any:
        if rounding is None and source.is_fp32() and target.is_bf16():
            return torch.tensor(numbers).bfloat16().view(torch.uint16).numpy()
        if target.is_fp8e4nv() and (source.is_fp32() or source.is_fp16() or source.is_bf16()):
            wide = torch.tensor(numbers)
            wide = wide.view(torch.bfloat16) if source.is_bf16() else wide
            return wide.float().clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        return convert(numbers, source, target, rounding)

    return converted


def splat(made: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's broadcast of a scalar, changed to keep the result of a comparison boolean.

    Triton's own (3.7 and 3.9, runtime/interpreter.py, `create_splat`) makes it an integer, which is no mask.
    """

    def splatted(builder: Any, shape: Any, scalar: Any) -> Any:
        block = made(builder, shape, scalar)
        if scalar.data.dtype == bool:
            block.data = block.data.astype(bool)
        return block

    return splatted
