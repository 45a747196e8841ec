"""A release's Triton kernels, run by its interpreter on a CPU: launches like any other, on guarded tensors."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attnfuzz.kernels.backend import Op


@contextmanager
def through(launch: Callable[[Op, dict[str, Any]], object]) -> Iterator[None]:
    """Let `launch` run every Triton kernel, interpreted or compiled; do nothing if Triton is not installed.

    The interpreter reads and writes by address, like a GPU: past the end of a guarded tensor it faults.
    """
    try:
        from triton.runtime import interpreter  # noqa: PLC0415 - only a release needs Triton
        from triton.runtime.interpreter import InterpretedFunction  # noqa: PLC0415
        from triton.runtime.jit import JITFunction  # noqa: PLC0415
    except ImportError:
        yield
        return
    before = {kernel: kernel.run for kernel in (InterpretedFunction, JITFunction)}
    convert = interpreter._convert_float  # noqa: SLF001 - it has no other name
    for kernel, run in before.items():
        kernel.run = _launching(run, launch)
    interpreter._convert_float = _rounding(convert)  # noqa: SLF001
    try:
        yield
    finally:
        interpreter._convert_float = convert  # noqa: SLF001
        for kernel, run in before.items():
            kernel.run = run


def _rounding(convert: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's conversion of numbers, changed to round float32 to the nearest bfloat16 as a GPU does.

    Triton's own truncates unless a rounding is given (Triton 3.7, runtime/interpreter.py, `_convert_float`): after ten
    merges of attention states, results are 2% too small.
    """

    def converted(numbers: Any, source: Any, target: Any, rounding: Any) -> Any:
        if rounding is None and source.is_fp32() and target.is_bf16():
            return torch.tensor(numbers).bfloat16().view(torch.uint16).numpy()
        return convert(numbers, source, target, rounding)

    return converted


def _launching(run: Callable[..., Any], launch: Callable[[Op, dict[str, Any]], object]) -> Callable[..., None]:
    def launched(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if warmup:
            run(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            return
        arguments = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        # A kernel's signature does not show which of its tensors it writes.
        tensors = frozenset(name for name, value in arguments.items() if isinstance(value, torch.Tensor))

        def work(**placed: Any) -> None:
            run(kernel, grid=grid, warmup=False, **placed)

        launch(Op(kernel.__name__, work, tensors, own=True), arguments)

    return launched
