"""Kernels that a release compiles for itself, called as its modules have them."""

from types import SimpleNamespace
from typing import Any

import torch

from attnfuzz.kernels.releases.stand_ins import answered_by
from attnfuzz.kernels.sglang.stand_ins import JitModule, launch_of, launching


def double(out: torch.Tensor, by: int) -> None:
    """A kernel."""
    out *= by


def test_a_kernel_is_launched_and_not_called() -> None:
    seen: list[Any] = []
    lower: Any = SimpleNamespace(launch=lambda op, arguments: seen.append((op.name, arguments)))
    load = launching(lambda *_: SimpleNamespace(double=double))
    numbers = torch.ones(2)
    with answered_by(lower):
        load("double").double(numbers, 2)
    assert seen == [("double", {"argument_0": numbers, "argument_1": 2})]
    assert numbers.tolist() == [1, 1]


def test_a_function_without_tensors_is_called_directly() -> None:
    module = JitModule(SimpleNamespace(most_threads=lambda dim: dim * 2))
    assert module.most_threads(8) == 16


def test_a_loader_is_wrapped_once() -> None:
    once = launching(lambda *_: None)
    assert launching(once) is once


def test_a_launch_has_its_arguments_in_their_order_and_may_write_each_tensor() -> None:
    numbers = torch.ones(2)
    op, arguments = launch_of(double, "double", (numbers, 3))
    assert (op.name, op.own, op.writes) == ("double", True, frozenset({"argument_0"}))
    op.function(**arguments)
    assert numbers.tolist() == [3, 3]
