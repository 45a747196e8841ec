"""Triton's interpreter, corrected: numbers are those of a GPU, and a launch changes the language once."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from attnfuzz.kernels.building.triton_interpreter import as_on_a_gpu, patched_once, splat, without_idle_checks


@dataclass(frozen=True)
class Number:
    """A dtype of Triton, which is not imported: its interpreter would stay in this process."""

    name: str

    def __getattr__(self, asked: str) -> Callable[[], bool]:
        return lambda: asked == f"is_{self.name}"


def test_numbers_of_the_interpreter_saturate_and_carry() -> None:
    convert = as_on_a_gpu(lambda *_: pytest.fail("the interpreter's own conversion"))

    def fp8(*numbers: float) -> torch.Tensor:
        bits = convert(torch.tensor(numbers).numpy(), Number("fp32"), Number("fp8e4nv"), None)
        return torch.from_numpy(bits).view(torch.float8_e4m3fn).float()

    assert fp8(1.998, -1000.0, torch.inf, 2.0**-9).tolist() == [2.0, -448.0, 448.0, 2.0**-9]
    assert fp8(torch.nan).isnan().all()


def test_the_broadcast_of_a_comparison_is_a_mask() -> None:
    def integers(_builder: object, shape: tuple[int, ...], scalar: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(data=np.full(shape, scalar.data, dtype=np.int64))

    broadcast = splat(integers)
    assert broadcast(None, (2,), SimpleNamespace(data=np.array(True))).data.dtype == bool
    assert broadcast(None, (2,), SimpleNamespace(data=np.array(3))).data.dtype == np.int64


def function_with(**globals_: object) -> SimpleNamespace:
    return SimpleNamespace(__globals__=globals_)


def test_a_launch_changes_the_language_once() -> None:
    events: list[object] = []

    def patch(function: object) -> SimpleNamespace:
        events.append(function)
        return SimpleNamespace(restore=lambda: events.append("restored"))

    language, core = ModuleType("triton.language"), ModuleType("triton.language.core")
    kernel, called = function_with(tl=language, torch=torch), function_with(tl=language, tiles=4)
    of_core = function_with(tl=core)
    patched = patched_once(patch)
    for _ in range(2):
        launch = patched(kernel)
        for each in (called, called, of_core, of_core):
            patched(each)
        launch.restore()
    assert events == [kernel, of_core, "restored"] * 2


@dataclass(frozen=True)
class Options:
    """The options of the interpreter that matter."""

    debug: bool
    sanitize_overflow: bool = True


@pytest.mark.parametrize("debug", [False, True])
def test_overflows_are_looked_for_where_they_are_reported(debug: bool) -> None:
    assert without_idle_checks(Options(debug)) == Options(debug, sanitize_overflow=debug)
