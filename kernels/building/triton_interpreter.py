"""Triton's interpreter, with corrections that make its numbers equal to a GPU's, and optimizations."""

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_LARGEST = torch.finfo(torch.float8_e4m3fn).max

_LANGUAGE = "triton.language"


def as_on_a_gpu(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Return the interpreter's conversion of floating-point numbers, changed to round to the nearest as a GPU does.

    Triton's own (3.7 and 3.9, runtime/interpreter.py, `_convert_float`) truncates float32 to bfloat16 unless a rounding
    is given: after ten merges of attention states, results are 2% too small. For fp8 e4m3 it rounds without a carry, so
    1.998 becomes 1, and it wraps large numbers around; a GPU saturates (PTX, cvt.rn.satfinite.e4m3x2.f32).
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
    """Return the interpreter's broadcast of a scalar, changed to keep the result of a comparison boolean.

    Triton's own (3.7 and 3.9, runtime/interpreter.py, `create_splat`) makes it an integer, which is not a mask.
    """

    def splatted(builder: Any, shape: Any, scalar: Any) -> Any:
        block = made(builder, shape, scalar)
        if scalar.data.dtype == bool:
            block.data = block.data.astype(bool)
        return block

    return splatted


def patched_once(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the interpreter's patch of Triton's language, applied only once per launch.

    Triton (3.7.1, runtime/interpreter.py, `InterpretedFunction.__call__`) applies it again in each call of a function
    that a kernel calls, which takes a sixth of the CPU time of vLLM's attention. That has no effect, because the launch
    has patched the same modules already, and restores them at its end.
    """
    changed: set[int] = set()

    def patched(function: Any) -> Any:
        modules = _languages(function)
        if modules <= changed:
            return SimpleNamespace(restore=lambda: None)
        scope = patch(function)
        changed.update(modules)

        def restore() -> None:
            changed.clear()
            scope.restore()

        return SimpleNamespace(restore=restore)

    return patched


def _languages(function: Any) -> set[int]:
    """Return the modules of Triton's language among the globals of a function, by identity."""
    return {
        id(each)
        for each in function.__globals__.values()
        if isinstance(each, ModuleType) and each.__name__.startswith(_LANGUAGE)
    }


def without_idle_checks(options: Any) -> Any:
    """Return the interpreter's options, changed to check integers for overflow only if an overflow is reported.

    It is only reported in debug mode, but Triton (3.7.1, language/semantic.py, `binary_op_sanitize_overflow_impl`)
    compares each sum and product with one in int64 in any mode, which takes a third of the CPU time of vLLM's
    attention.
    """
    return replace(options, sanitize_overflow=options.sanitize_overflow and options.debug)


def corrections(interpreter: Any) -> list[tuple[Any, str, Any]]:
    """Return the owner, the name and the replacement of each part of `triton.runtime.interpreter` that is corrected."""
    return [
        (owner, name, change(getattr(owner, name)))
        for owner, name, change in (
            (interpreter, "_convert_float", as_on_a_gpu),
            (interpreter, "_patch_lang", patched_once),
            (interpreter.InterpreterBuilder, "create_splat", splat),
            (interpreter.interpreter_builder, "options", without_idle_checks),
        )
    ]
