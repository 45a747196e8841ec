"""A release's Triton kernels, run by its interpreter on a CPU: launches like any other, on guarded tensors."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from attnfuzz.kernels.building.triton_interpreter import corrections
from attnfuzz.kernels.interface.backend import Op


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
    launched = [(kernel, "run", _launching(kernel.run, launch)) for kernel in (InterpretedFunction, JITFunction)]
    with ExitStack() as stack:
        for owner, name, replacement in (*launched, *corrections(interpreter)):
            stack.enter_context(mock.patch.object(owner, name, replacement))
        # Compiled functions have it, and code that starts them asks for it.
        stack.enter_context(mock.patch.object(InterpretedFunction, "constexprs", property(_constexprs), create=True))
        yield


def _constexprs(kernel: Any) -> list[int]:
    """List the places of the parameters of an interpreted kernel that are constants to a compiler."""
    parameters = inspect.signature(kernel.fn).parameters.values()
    return [place for place, each in enumerate(parameters) if "constexpr" in str(each.annotation)]


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
