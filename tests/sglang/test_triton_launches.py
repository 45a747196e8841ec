"""Triton kernels in the interpreter: launches on guarded tensors, recorded as one unit each."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.releases import triton_launches

pytestmark = pytest.mark.sglang


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kernel that writes twice its source to its target."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    # The commit gate collects this file, and has no Triton.
    import triton  # noqa: PLC0415
    from triton import language as tl  # noqa: PLC0415

    @triton.jit  # type: ignore[untyped-decorator]
    def double_kernel(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(target + at, tl.load(source + at, mask=at < count) * 2, mask=at < count)

    # Triton looks for names where a module has them.
    double_kernel.fn.__globals__["tl"] = tl
    return double_kernel


def launched(double: Any, through: Callable[[Op, dict[str, Any]], object]) -> torch.Tensor:
    source, target = torch.arange(5), torch.zeros(5, dtype=torch.int64)
    with triton_launches.through(through):
        double[(2,)](source, target, 5, BLOCK=4, num_warps=1)
    return target


def test_a_kernel_is_launched_by_name_with_its_arguments_and_writes_any_of_its_tensors(double: Any) -> None:
    seen: list[tuple[Op, dict[str, Any]]] = []
    assert launched(double, lambda op, arguments: seen.append((op, arguments))).tolist() == [0] * 5
    ((op, arguments),) = seen
    assert (op.name, op.writes, op.own) == ("double_kernel", frozenset({"source", "target"}), True)
    assert (arguments["count"], arguments["BLOCK"]) == (5, 4)
    op.function(**arguments)
    assert arguments["target"].tolist() == [0, 2, 4, 6, 8]


def test_a_kernel_runs_as_ever_outside(double: Any) -> None:
    assert launched(double, lambda op, arguments: op.function(**arguments)).tolist() == [0, 2, 4, 6, 8]
    source, target = torch.ones(1), torch.zeros(1)
    double[(1,)](source, target, 1, BLOCK=2)
    assert target.item() == 2


def test_a_store_rounds_to_the_nearest_bfloat16_as_a_gpu_does(double: Any) -> None:
    source, target = torch.tensor([1 + 3 * 2**-9, -1 - 3 * 2**-9, 1 + 2**-8]), torch.zeros(3, dtype=torch.bfloat16)
    with triton_launches.through(lambda op, arguments: op.function(**arguments)):
        double[(1,)](source, target, 3, BLOCK=4, num_warps=1)
    assert target.tolist() == (2 * source).bfloat16().tolist()


@pytest.fixture
def quadruple(double: Any) -> Any:
    """A kernel that calls another function twice for each element."""
    import triton  # noqa: PLC0415
    from triton import language as tl  # noqa: PLC0415

    @triton.jit  # type: ignore[untyped-decorator]
    def twice(number: Any) -> Any:
        return number * 2

    @triton.jit  # type: ignore[untyped-decorator]
    def quadruple_kernel(source, target, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        for at in tl.static_range(COUNT):
            tl.store(target + at, twice(twice(tl.load(source + at))))

    double.fn.__globals__["twice"] = twice
    return quadruple_kernel


def test_a_launch_changes_the_language_once_whatever_it_calls(quadruple: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter  # noqa: PLC0415

    patch = mock.Mock(wraps=interpreter._patch_lang)
    monkeypatch.setattr(interpreter, "_patch_lang", patch)
    source, target = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    with triton_launches.through(lambda op, arguments: op.function(**arguments)):
        for _ in range(2):
            quadruple[(1,)](source, target, COUNT=3)
    assert target.tolist() == [0, 4, 8]
    assert patch.call_count == 2


def test_no_overflow_is_looked_for_that_is_not_reported(double: Any) -> None:
    from triton.language.semantic import TritonSemantic  # noqa: PLC0415

    with mock.patch.object(TritonSemantic, "device_assert") as report:
        assert launched(double, lambda op, arguments: op.function(**arguments)).tolist() == [0, 2, 4, 6, 8]
    report.assert_not_called()
